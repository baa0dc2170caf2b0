#!/usr/bin/env bash
# A task of a fleet: `ladder run` of one workload on one node. `ladder submit --slurm` fills in the first lines.
#
# Slurm may end and requeue a task at any time. A task that begins again goes on from its whole generations. The newest
# result is checked, then copied to results/ladder/MACHINE, where all tasks of the fleet meet.
#SBATCH --job-name=ladder --nodes=1 --ntasks=1 --exclusive --requeue --open-mode=append --signal=B:TERM@60
set -u
root=$root
fleet=$fleet
python=$python
names=($names)
workloads=($workloads)
arguments=($arguments)

name=$${names[SLURM_ARRAY_TASK_ID]}
own=$$fleet/tasks/$$SLURM_JOB_PARTITION/$$name
again=$${SLURM_RESTART_COUNT:-0}
cd "$$root" && mkdir -p "$$own" "$$fleet/results/ladder" || exit 1
exec 9> "$$own/.task"
if ! flock --timeout $wait_s 9; then
    echo "ladder: another task of this fleet works in $$own"
    exit 2
fi
echo "ladder: $$name on $$(hostname), start $$((again + 1))"

# Run in the background: only then does the shell hear Slurm's signal before the time is over, and hand it on.
climb() {
    "$$python" -m ladder run "$$@" 9>&- &
    child=$$!
    trap 'kill -TERM "$$child"' TERM
    wait "$$child"
    status=$$?
    while kill -0 "$$child" 2>/dev/null; do
        wait "$$child"
        status=$$?
    done
}

asked=(--workload "$${workloads[SLURM_ARRAY_TASK_ID]}" --out "$$own" $${arguments[@]+"$${arguments[@]}"})

status=2
for file in "$$own"/*/*.json; do # an unfinished one that cannot go on here waits for a node on which it can
    if [ ! -e "$$file" ] || grep -q '^ "complete": true' "$$file"; then continue; fi
    climb --resume "$$file" "$${asked[@]}"
    if [ "$$status" != 2 ]; then break; fi
    echo "ladder: $$file cannot go on here and stays"
done
if [ "$$status" = 2 ]; then climb "$${asked[@]}"; fi

# 0: done. 1: done, and a rung has no number here. 2: impossible here, the line above says why. Else it was ended.
# After `scancel`, and where Slurm itself requeues the task, it is not RUNNING any more.
if [ "$$status" -gt 2 ] && [ "$$again" -lt 9 ]; then
    task=$${SLURM_ARRAY_JOB_ID}_$${SLURM_ARRAY_TASK_ID}
    if [ "$$(squeue --noheader --jobs="$$task" --format=%T)" = RUNNING ]; then
        echo "ladder: ended with status $$status: requeued"
        scontrol requeue "$$task"
    fi
fi
[ "$$status" -le 1 ] || exit "$$status"

newest=$$(ls -t "$$own"/*/*.json | head -n 1)
"$$python" -m ladder validate "$$newest" || exit 1
shared=$$fleet/results/ladder/$${newest#"$$own"/}
stem=$${shared%.json} number=2
while [ -e "$$shared" ] && ! cmp -s "$$newest" "$$shared"; do # another partition's run of the same second
    shared=$$stem-$$((number++)).json
done
part=$$shared.$$SLURM_JOB_PARTITION.tmp
mkdir -p "$$(dirname "$$shared")" && cp "$$newest" "$$part" && mv "$$part" "$$shared" || exit 1
echo "ladder: $$shared"
