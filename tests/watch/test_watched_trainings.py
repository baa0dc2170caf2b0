"""`ladder watch` on small trainings: each planted mistake is found at its line, and their clean twins have none.

A line `BAD  # id: GOOD` is a mistake; the twin has GOOD in its place. An empty id belongs to the mistake above.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLANTED = re.compile(r"^(?P<indent> *)(?P<bad>.*?)  # (?P<id>[a-z_0-9]*): (?P<good>.*)$")
HEAD = """
import copy, torch, torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
D = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(16, 16, 3, padding=1), nn.LeakyReLU(0.2),
                  nn.Conv2d(16, 16, 3, padding=1), nn.Flatten(), nn.Linear(16 * 32 * 32, 1))
G = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(16, 16, 3, padding=1),
                  nn.LeakyReLU(0.2), nn.Conv2d(16, 16, 3, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(16, 3, 3, padding=1))
"""
GAN = """
opt_D = torch.optim.Adam(D.parameters(), fused=True)
opt_G = torch.optim.Adam(G.parameters(), fused=True)
history = []
for number in range(60):
    real = torch.randn(4, 3, 32, 32, requires_grad=True)
    D.requires_grad_(True)
    with torch.enable_grad():  # : with torch.no_grad():
        fake = G(torch.randn(4, 8, 32, 32))  # unused_graph: fake = G(torch.randn(4, 8, 32, 32))
    judged = D(real)  # double_backward: judged = D(real)
    loss = judged.mean() - D(fake.detach()).mean()
    if True:  # : if False:
        (slope,) = torch.autograd.grad(judged.sum(), real, create_graph=True)
        loss = loss + slope.square().mean()
    opt_D.zero_grad()
    loss.backward()
    opt_D.step()
    shown = float(loss.detach())  # synchronizations: shown = 0
    history.append(loss)  # kept_graphs: history.append(loss.detach())
    pass  # : D.requires_grad_(False)
    loss = -D(G(torch.randn(4, 8, 32, 32))).mean()
    opt_G.zero_grad()
    loss.backward()  # frozen_gradients: loss.backward()
    opt_G.step()
    torch.cuda.empty_cache()  # empty_cache: pass
"""
LOADER = """
class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 10000

    def __getitem__(self, place):
        import time
        time.sleep(0.002)  # : pass
        return torch.full((3, 32, 32), float(place))

def activate(x):
    x = x + 0.1  # elementwise_chain: pass
    x = x.clamp(-1, 1) * x.tanh()  # : pass
    x = x.exp().log1p() * x.sigmoid().sqrt()  # : pass
    return x

D[2] = nn.utils.spectral_norm(nn.Conv2d(16, 16, 3, padding=1))  # : pass
body, head = D[:5].to(memory_format=torch.channels_last), D[5:]
batches = iter(torch.utils.data.DataLoader(Pictures(), batch_size=4, num_workers=0))
opt = torch.optim.AdamW(D.parameters(), fused=True)
torch.autograd.set_detect_anomaly(True)  # debug_modes: pass
for number in range(60):
    real = next(batches)  # slow_loader: real = next(batches)
    x = body(real)  # spectral_norm: x = body(real)
    x = x.contiguous()  # layout_conversions: pass
    x = x * 0.5  # : pass
    loss = head(activate(x).contiguous(memory_format=torch.channels_last)).mean()  # : loss = head(x).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
PRECISION = """
import os
os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
features = copy.deepcopy(G[:4])
features.requires_grad_(True)  # : features.requires_grad_(False)
scaler = torch.amp.GradScaler("cpu", init_scale=1.0, enabled=True)  # scaler_with_bf16: scaler = None
net = G[:5]
net = nn.parallel.DistributedDataParallel(net, find_unused_parameters=True)  # unused_search: pass
last = nn.utils.weight_norm(nn.Linear(512, 512))  # : last = nn.Linear(512, 512)
wide = nn.Linear(512, 512)
weights = [*net.parameters(), *wide.parameters(), *last.parameters()]
opt = torch.optim.SGD(weights, fused=True)
def project(x):
    for _ in range(12):
        x = F.linear(x, wide.weight.to(torch.bfloat16))  # weight_casts: x = F.linear(x, weight)
    return x

for number in range(60):
    weight = wide.weight.to(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        image = net(torch.randn(2, 8, 8, 8))[:, :8].float()
    loss = features(image.repeat(2, 1, 4, 4)).mean()  # unowned_gradients: loss = features(image).mean()
    loss = loss + project(torch.randn(4, 512, dtype=torch.bfloat16)).mean()
    loss = loss + last(torch.randn(4, 512)).mean()  # weight_norm: loss = loss + last(torch.randn(4, 512)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
UPDATES = """
torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
net = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)))
replica = nn.parallel.DistributedDataParallel(net)
average = copy.deepcopy(net)
opt = torch.optim.AdamW(net.parameters(), fused=False)  # : opt = torch.optim.AdamW(net.parameters(), fused=True)
for number in range(60):
    opt.zero_grad(set_to_none=False)  # zeroed_gradients: opt.zero_grad()
    with torch.enable_grad():  # : with replica.no_sync():
        replica(torch.randn(4, 256)).mean().backward()
    loss = replica(torch.randn(4, 256)).mean()
    loss.backward()  # repeated_reductions: loss.backward()
    opt.step()  # unfused_optimizer: opt.step()
    with torch.no_grad():
        for mine, its in zip(average.parameters(), net.parameters()):
            mine.copy_(its.lerp(mine, 0.99))  # parameter_loop: pass
"""


def write_script(folder: Path, body: str, *, is_clean: bool) -> dict[str, int]:
    """Write train.py, and return the line of each planted mistake by its id."""
    lines, planted = [], {}
    for number, line in enumerate(textwrap.dedent(HEAD + body).splitlines(), start=1):
        if match := PLANTED.match(line):
            line = match["indent"] + match["good" if is_clean else "bad"]
            if match["id"]:
                planted[match["id"]] = number
        lines.append(line)
    (folder / "train.py").write_text("\n".join(lines) + "\n")
    return planted


def start_watch(folder: Path, *arguments: str, **more: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "ladder", "watch", *arguments]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )  # type: ignore[call-overload]


def run_watch(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Return the status, stdout and stderr of `ladder watch`."""
    with start_watch(folder, *arguments) as process:
        out, err = process.communicate(timeout=280)
    return process.returncode, out, err


def read_findings(folder: Path) -> dict[str, dict[str, object]]:
    status, out, err = run_watch(folder, "--report", "watch.json", "--json")
    assert status == 0, err
    return {each["id"]: each for each in json.loads(out)["findings"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    "body", [GAN, LOADER, PRECISION, UPDATES], ids=["gan", "loader", "precision", "updates"]
)
@pytest.mark.parametrize("is_clean", [False, True], ids=["planted", "clean"])
def test_planted_mistakes_are_found_at_their_lines_and_their_clean_twins_have_none(
    tmp_path: Path, body: str, is_clean: bool
) -> None:
    planted = write_script(tmp_path, body, is_clean=is_clean)
    status, _, err = run_watch(tmp_path, "--skip", "24", "--", sys.executable, "train.py")
    assert status == 0, err
    findings = read_findings(tmp_path)
    if is_clean:
        assert {name: each["where"] for name, each in findings.items()} == {}, err
        return
    expected = {name: f"train.py:{line}" for name, line in planted.items()}
    named = {name: each["where"] for name, each in findings.items()}
    if "debug_modes" in named:
        named["debug_modes"] = [expected["debug_modes"]]  # a setting has no line
    assert {name for name, line in expected.items() if line not in named.get(name, [])} == set(), named
    assert named.keys() == expected.keys(), named


GPU = """
torch.backends.cudnn.allow_tf32 = True
torch.backends.cudnn.benchmark = False  # : torch.backends.cudnn.benchmark = True
D = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(64, 64, 3, padding=1)).cuda()
opt = torch.optim.Adam(D.parameters(), fused=True, capturable=True)
for number in range(80):
    real = torch.randn(8, 3, 256, 256).to("cuda")  # pageable_copies: real = torch.randn(8, 3, 256, 256, device="cuda")
    real.requires_grad_(True)
    judged = D(real)  # double_backward: judged = D(real)
    loss = judged.mean()
    if True:  # : if False:
        (slope,) = torch.autograd.grad(judged.sum(), real, create_graph=True)
        loss = loss + slope.square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    torch.cuda.synchronize()  # synchronizations: pass
"""


@pytest.mark.gpu
@pytest.mark.parametrize("is_clean", [False, True], ids=["planted", "clean"])
def test_a_gpus_kernels_copies_and_synchronizations_have_their_lines(tmp_path: Path, is_clean: bool) -> None:
    planted = write_script(tmp_path, GPU, is_clean=is_clean)
    planted["cudnn_benchmark"] = planted["double_backward"]  # the line of the convolutions
    status, _, err = run_watch(tmp_path, "--", sys.executable, "train.py")
    assert status == 0, err
    findings = read_findings(tmp_path)
    for name, line in planted.items():
        assert (f"train.py:{line}" in findings.get(name, {"where": []})["where"]) is not is_clean, err
    assert json.loads((tmp_path / "watch.json").read_text())["idle"], err


# --- the user's program stays as it is --------------------------------------------------------------------------------

TINY = """
import sys, torch
net = torch.nn.Linear(4, 4)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
torch.manual_seed(int(sys.argv[1]))
for number in range(int(sys.argv[2])):
    opt.zero_grad()
    net(torch.randn(2, 4)).square().mean().backward()
    opt.step()
print("end", net.weight.sum().item().hex(), sys.argv)
sys.exit(7)
"""


def test_a_training_computes_prints_and_ends_as_it_does_without_the_watch(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\ntorch.manual_seed(3)\n" + TINY)
    command = [sys.executable, "train.py", "5", "60"]
    alone = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    status, out, err = run_watch(tmp_path, "--skip", "4", "--steps", "2", "--", *command)
    assert (status, out) == (alone.returncode, alone.stdout) == (7, out) and out.startswith("end")
    assert "a step takes" in err and (tmp_path / "watch.json").exists()


def test_a_module_of_a_program_that_stops_after_the_report(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TINY)
    begun = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        arguments = ("--skip", "4", "--steps", "2", "--stop", "--module", "train", "--", "1", "1000000000")
        status, out, err = run_watch(tmp_path, *arguments)
    assert status == 0 and out == "" and "a step takes" in err and time.monotonic() - begun < 120


def test_a_training_that_is_too_short_never_steps_or_does_not_start_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TINY.replace("sys.exit(7)", ""))
    (tmp_path / "idle.py").write_text("import torch\n")
    cases = {
        (sys.executable, "train.py", "1", "9"): (2, "ended after 8 steps"),
        (sys.executable, "idle.py"): (2, "no optimizer of PyTorch stepped"),
        (sys.executable, "-c", "raise SystemExit(5)"): (5, "no optimizer of PyTorch stepped"),
        ("no-such-program",): (2, "no-such-program: cannot be started"),
        (): (2, "name the training's command"),
    }
    for command, (expected, reason) in cases.items():
        status, _, err = run_watch(tmp_path, *(["--"] if command else []), *command)
        assert status == expected and reason in err.splitlines()[-1], (command, err)
        assert not (tmp_path / "watch.json").exists()


def test_a_notebook_watches_what_it_runs_next_as_often_as_it_asks(tmp_path: Path) -> None:
    lines = ["import sys", f"sys.path.append({str(ROOT / 'ladder/watch/inside')!r})", "import torch"]
    lines += ["from ladder_watch import watch", "watch('watch.json', skip=4, steps=2)"]
    (tmp_path / "cell.py").write_text("\n".join([*lines, TINY.replace("sys.exit(7)", "")]))
    for count in ("20", "21"):
        subprocess.run([sys.executable, "cell.py", "1", count], cwd=tmp_path, check=True, capture_output=True)
        status, out, err = run_watch(tmp_path, "--report", "watch.json")
        assert status == 0 and "2 steps profiled after 4" in out, err
        (tmp_path / "watch.json").unlink()


def test_ctrl_c_and_termination_reach_the_program(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n"
        "try:\n    print('ready', flush=True)\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    print('saved', flush=True)\n    sys.exit(3)\n"
    )
    for number, expected, words in ((signal.SIGINT, 3, "saved\n"), (signal.SIGTERM, 9, "")):
        with start_watch(tmp_path, "--", sys.executable, "train.py", start_new_session=True) as process:
            assert process.stdout.readline() == "ready\n"
            if number == signal.SIGINT:  # a terminal sends it to the whole group
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
            out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (expected, words), err


def test_workers_of_a_loader_and_other_ranks_do_not_disturb(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        """
import os, torch
torch.distributed.init_process_group("gloo")
images = torch.utils.data.TensorDataset(torch.randn(64, 4))
loader = torch.utils.data.DataLoader(images, batch_size=2, num_workers=1)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for (batch,) in loader:
    opt.zero_grad()
    net(batch).mean().backward()
    opt.step()
if torch.distributed.get_rank() == 0:
    print("end")
torch.distributed.destroy_process_group()
"""
    )
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    status, out, err = run_watch(tmp_path, "--skip", "6", "--steps", "2", "--", sys.executable, *command)
    assert (status, out) == (0, "end\n"), err
    assert "SGD at train.py:11 1x" in err
    seen = json.loads((tmp_path / "watch.json").read_text())
    assert [loader["workers"] for loader in seen["loaders"]] == [1]


def test_recompilations_and_graph_breaks_of_compiled_code_are_found(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        """
import torch
net = torch.nn.Linear(4, 4)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
@torch.compile(backend="eager", dynamic=False)
def loss_of(x):
    torch._dynamo.graph_break()
    return net(x).square().mean()

for number in range(14):
    opt.zero_grad()
    loss_of(torch.randn(number % 8 + 2, 4)).backward()
    opt.step()
"""
    )
    status, _, err = run_watch(tmp_path, "--skip", "4", "--steps", "2", "--", sys.executable, "train.py")
    assert status == 0, err
    findings = read_findings(tmp_path)
    assert {"recompilations", "graph_breaks"} <= findings.keys(), err
    assert {*findings["recompilations"]["where"]} <= {f"train.py:{line}" for line in (5, 6, 7)}


def test_a_program_is_not_started_where_its_observation_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('began')\n")
    (tmp_path / "file").write_text("")
    status, out, err = run_watch(tmp_path, "--out", "file/watch.json", "--", sys.executable, "train.py")
    assert (status, out) == (2, "") and "file: cannot be written" in err, err
