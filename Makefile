# Two commands for a fresh machine: `make ladder` and `make test`. Both are safe to run again. `make setup` alone makes .venv
# with everything in it, the command `.venv/bin/ladder` included.
#
#   PYTHON=python3.12 make ladder          another interpreter for .venv (the default is python3)
#   PYTHON=python3 make ladder NO_VENV=1   no .venv: that interpreter's packages, exactly as they are
#   make ladder ARGS="--workload adain-256"
#   make bench-compare BASE=main HEAD=HEAD   RUNGS=baseline,bf16 WORKLOAD=tiny GENERATIONS=8 BUDGET=20 (minutes): all optional
#
# Without a GPU the ladder is the quick one, done in minutes; `.venv/bin/ladder run` is the whole.

PYTHON ?= python3
ARGS ?=
GPUS ?= 1,2
TOTAL ?= 32
WEAK ?= article-b32
STRONG ?= article
LARGE ?= stylegan2-1024
comma := ,
quoted = '$(subst ','\'',$(1))'
# A committed file belongs to the machine that made it.
stopped = $(addprefix --resume ,$(firstword $(shell git ls-files --others 'results/scaled/*-$(1)-partial.json')))

ifneq ($(filter-out 0,$(NO_VENV)),)
PY := $(PYTHON)
READY :=
else
PY := .venv/bin/python
READY := .venv/.made-from-lock
endif

.DEFAULT_GOAL := help
.PHONY: help setup ladder bench-compare publish docs test test-all quick faults lint sanitize bench-kernels scale clean

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 24

setup: $(READY)  ## make .venv: the packages of requirements.lock and the command `ladder`
	@$(PY) -m ladder.core.installed click yaml rich numpy scipy torch

ladder: $(READY)  ## climb the article's ladder on the hardware found here (ARGS: options of `ladder run`)
	@quick=$$($(PY) -m ladder.machine.system) && set -x && \
	$(PY) -m ladder run $$quick $(ARGS)

bench-compare:  ## is commit HEAD slower than BASE, on this device? exit status 0 no, 1 yes, 2 nothing measured
	@exit $(or $(COMPARED),2)

# Whatever a recipe ends with, make ends with 2; with 1 only where -q finds something to do. So the comparison runs while
# this file is read (not with -n), and "slower" switches -q on. A shell that says no status has compared nothing: 2.
# A make that gets a signal leaves such a shell alone, or waits for it: no longer does it catch the same signals. Then
# a watch ends the comparison, which saves what it has.
ifeq ($(MAKECMDGOALS)$(findstring n,$(firstword -$(MAKEFLAGS))),bench-compare)
COMPARED := $(shell { ($(if $(READY),$(MAKE) --no-print-directory PYTHON=$(call quoted,$(PYTHON)) $(READY) &&) exec $(PY) -m ladder \
  bench-compare --base $(call quoted,$(or $(BASE),main)) --head $(call quoted,$(or $(HEAD),HEAD)) \
  $(if $(RUNGS),--rungs $(call quoted,$(RUNGS))) $(if $(WORKLOAD),--workload $(call quoted,$(WORKLOAD))) \
  $(if $(GENERATIONS)$(ROUNDS),--generations $(call quoted,$(or $(GENERATIONS),$(ROUNDS)))) $(if $(BUDGET),--budget $(call quoted,$(BUDGET))) \
  $(ARGS)) & compared=$$!; \
  { caught=$$(grep SigCgt /proc/$$PPID/status); while kill -0 $$PPID && kill -0 $$compared && \
  test "$$(grep SigCgt /proc/$$PPID/status)" = "$$caught"; do sleep 1; done; kill -TERM $$compared; } 2>/dev/null & \
  wait $$compared; } >&2; echo $$?)
ifeq ($(COMPARED),1)
MAKEFLAGS += -q
endif
endif

publish: $(READY)  ## build the site of all results in results/ into .asv/html
	@$(PY) -m ladder.core.installed asv
	$(PY) -m asv publish $(ARGS)

docs: $(READY)  ## draw results/charts, fill the tables of README and docs, make pages beside results anew: from committed results
	$(PY) -m ladder report --publish
	$(PY) -m ladder.publish.pages
	$(PY) -m ladder watch --report docs/images/watch.json --html docs/images/watch.svg > /dev/null

# Files with slow tests begin first (tests/conftest.py): else one of them is left for one process at the end.
SIDE_BY_SIDE := -q -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

test: lint  ## lint, then the tests, of each sweep a few cases; needs no GPU
test-all: lint  ## all that `make test` does, and every other case of the sweeps
test: WANTED := not gpu and not exhaustive
test-all: WANTED := not gpu

# Tests of a GPU run one at a time: they time and fill it. They come first, so that the summary of the many ends the log.
test test-all:
	@$(PY) -m ladder.core.installed torch pytest pytest_timeout xdist
	@if $(PY) -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then set -x; $(PY) -m pytest -q -m gpu; \
	else echo "make: torch finds no GPU here: the tests marked gpu are left out"; fi
	$(PY) -m pytest $(SIDE_BY_SIDE) -m "$(WANTED)"

faults: $(READY)  ## inject every fault, bug and sabotage that is tested; write results/faults
	@$(PY) -m ladder.core.installed torch pytest pytest_timeout
	$(PY) -m pytest -q -p no:cacheprovider --record-outcomes=results/faults tests

quick: lint  ## lint, then the tests of what changed, without the slow ones: seconds
	@$(PY) -m ladder.core.installed torch pytest pytest_timeout xdist
	@$(PY) -m tests.support.quick

lint: $(READY)  ## ruff, rules and formatting, and mypy
	@$(PY) -m ladder.core.installed ruff mypy
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

sanitize: $(READY)  ## every fused kernel under compute-sanitizer's memcheck and racecheck; needs a CUDA GPU
	@$(PY) -m ladder.core.installed torch triton
	$(PY) -m tests.support.sanitize

bench-kernels: $(READY)  ## every op as a pytest-benchmark, at asv's cases; write results/benchmarks (ARGS: options of pytest; PART=-some: of the file's name)
	@$(PY) -m ladder.core.installed torch pytest pytest_benchmark
	@mkdir -p results/benchmarks && \
	name=$$($(PY) -m tests.bench_plugin) && set -x && \
	$(PY) -m pytest -q -n 0 -p tests.bench_plugin tests/bench_kernels.py --benchmark-json="results/benchmarks/$$name$(PART).json" \
	--benchmark-columns=median,iqr,min,max,rounds --benchmark-sort=name $(ARGS)

# A part that fails leaves the others their turn, and make ends with 2. Ctrl-C ends all, once the part has saved its file.
# A part that was stopped is gone on with by the next `make scale`. 1024x1024 is measured on all GPUs only: images/s is
# what it is for.
scale: $(READY)  ## weak, strong and 1024x1024 scaling in under nine minutes; again: go on (GPUS=1,8 TOTAL=32; ARGS: options of `ladder scale`)
	@ended=0; trap 'exit 130' INT; set -x; \
	$(PY) -m ladder scale top ddp -w $(WEAK) --scaling weak --gpus $(GPUS) --budget 4 $(call stopped,$(WEAK)-top-ddp-weak) $(ARGS) || ended=1; \
	$(PY) -m ladder scale top ddp -w $(STRONG) --scaling strong --total $(TOTAL) --gpus $(GPUS) --budget 2.5 $(call stopped,$(STRONG)-top-ddp-strong) $(ARGS) || ended=1; \
	$(PY) -m ladder scale top flat -w $(LARGE) --scaling weak --gpus $(lastword $(subst $(comma), ,$(GPUS))) --generations 1 --no-proof $(call stopped,$(LARGE)-top-flat-weak) $(ARGS) || ended=1; \
	{ set +x; } 2>/dev/null; exit $$ended

clean:  ## remove .venv, caches and asv's working files; keep results
	rm -rf .venv .cache .asv .pytest_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last, so an interrupted installation is taken up again, and a new lock is installed over the old.
# It holds the folder of the environment, because `.venv/bin/ladder` does: in a checkout that was moved it is made anew.
# A `.venv` that is a link belongs to another checkout, and so does its `ladder`.
ifneq ($(shell cat .venv/.made-from-lock 2>/dev/null),$(realpath .venv))
.PHONY: .venv/.made-from-lock
endif
.venv/.made-from-lock: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("make: $(PYTHON) is Python %d.%d; 3.10 or newer is needed: PYTHON=python3.12 make ..." % sys.version_info[:2] if sys.version_info < (3, 10) else 0)'
	@.venv/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	@if test -s $@ && test "$$(cat $@)" != "$(realpath .venv)"; then echo "make: this checkout was moved: \`ladder\` is installed anew;" \
	  "other commands in .venv/bin still name the old folder (rm -r .venv before make)"; fi
	@echo "make: installing requirements.lock into .venv (minutes on the first run)"
	@quiet=; test -t 1 || quiet=-q; \
	.venv/bin/python -m pip install --disable-pip-version-check --no-input $$quiet -r requirements.lock
	@test -L .venv || .venv/bin/python -m pip install --disable-pip-version-check --no-input -q --no-build-isolation --no-deps -e .
	@cd .venv && pwd -P > .made-from-lock
