"""What a training step should compute: a shared state, fixed inputs, and the plain-PyTorch baseline in FP64 on them.

The shared state is any point of a real training run: ``STEPS`` steps of the baseline in, Adam's moments filled, noise
strengths and biases moved away from zero (at zero, half of the gradient paths would carry nothing). It is made in FP32,
since the rungs hold FP32 weights; from there every phase runs once in FP64 for each of ``REPLAYS`` sets of inputs.

FP64 gradients accumulate over whole minibatch-std groups, so that a large batch fits. Where even one group does not,
the batch becomes 4, then the CPU computes; the reason is kept. State and outcome are files of tensors under
``.cache/parity/``, keyed by workload and the source of the model, never under results.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import stylegan_lite
from ladder.errors import one_line
from ladder.files import replacing
from stylegan_lite import losses
from stylegan_lite.config import Recipe, Workload
from stylegan_lite.step import PHASES, TrainingStep

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "parity"
KEPT = 4  # cache entries; one of the article's workload is 3 GB
STEPS = 32
REPLAYS = 2
NUDGE = 0.1  # of noise strengths and biases, as they are applied
SMALL_BATCH = 4

State = dict[str, Any]
Outcome = dict[
    str, dict[str, Tensor]
]  # quantity ("loss", "gradient", "update", "ema", "untouched") -> name -> tensor
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Reference:
    """FP64 outcomes of every phase for each replay, on the CPU; ``workload.batch`` may be smaller than was asked for."""

    workload: Workload
    made_on: str
    chunk: int
    notes: list[str]
    state: State
    outcomes: list[dict[str, Outcome]]
    folder: Path

    def draws(self) -> list[Draw]:
        """The inputs that belong to the outcomes."""
        return [draw(self.workload, replay) for replay in range(REPLAYS)]


@dataclass(frozen=True)
class PhaseDraw:
    """Random numbers of one phase, float32 on the CPU; shapes as in :class:`stylegan_lite.inputs.PhaseInputs`.

    A part of it has what a loss reads of ``PhaseInputs``, hence the same names.
    """

    z: Tensor
    noise: list[Tensor]
    image_noise: Tensor | None
    uniform: Tensor
    layer_index: Tensor

    @property
    def batch(self) -> int:
        return len(self.z) // 2

    def part(self, samples: Tensor, device: str, dtype: torch.dtype) -> PhaseDraw:
        """Those samples alone."""
        here = {"device": device, "dtype": dtype}
        image_noise = None if self.image_noise is None else self.image_noise[samples].to(**here)
        return PhaseDraw(
            self.z[torch.cat([samples, self.batch + samples])].to(**here),
            [noise[samples].to(**here) for noise in self.noise],
            image_noise,
            self.uniform.to(**here),
            self.layer_index.to(device),
        )


@dataclass(frozen=True)
class Draw:
    """Everything that one step consumes: latents, noise, cutoffs, path noise, and real images [N, 3, R, R]."""

    phases: dict[str, PhaseDraw]
    real: Tensor


def draw(workload: Workload, number: int) -> Draw:
    """The ``number``-th set of inputs: a function of the workload's shapes and the number."""
    generator = torch.Generator().manual_seed(7_919 * (number + 1))
    r, layers = workload.resolution, [x for x in workload.resolutions for _ in range(1 if x == 4 else 2)]

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    phases = {}
    for phase in ("G_main", "G_pl", "D_main"):
        path = phase == "G_pl"
        n = max(1, workload.batch // workload.pl_batch_shrink) if path else workload.batch
        phases[phase] = PhaseDraw(
            normal(2 * n, workload.z_dim),
            [normal(n, 1, x, x) for x in layers],
            normal(n, 3, r, r) if path else None,
            torch.rand(2, generator=generator),
            torch.arange(2 * len(workload.resolutions)),
        )
    coarse = torch.nn.functional.interpolate(normal(workload.batch, 3, 8, 8), size=(r, r), mode="bilinear")
    real = (0.5 * coarse + 0.1 * normal(workload.batch, 3, r, r)).clamp(-1, 1)  # smooth, as photographs are
    return Draw(phases, real)


class Exact:
    """The baseline's step computed in pieces of ``chunk`` samples whose gradients are summed: same step, less memory."""

    def __init__(self, workload: Workload, precision: str, device: str, chunk: int) -> None:
        recipe = Recipe(precision=precision)
        self.step = TrainingStep(
            dataclasses.replace(workload, data=None), recipe, device=device, seed=workload.batch
        )
        self.chunk, self.device = chunk, device

    def run(self, phase: str, inputs: Draw) -> None:
        """One phase, with its optimizer step (and the moving average), as ``TrainingStep.run_phase`` does it."""
        step = self.step
        network, optimizer = (step.G, step.opt_G) if phase.startswith("G") else (step.D, step.opt_D)
        step.G.requires_grad_(network is step.G)
        step.D.requires_grad_(network is step.D)
        for parameter in network.parameters():  # zeros, not None: the baseline's set_to_none=False
            parameter.grad = torch.zeros_like(parameter)
        total = torch.zeros_like(step.loss[phase])
        for loss in self._losses(phase, inputs):
            loss.backward()
            total += loss.detach()
        optimizer.step()
        step.gradients[phase] = {name: p.grad for name, p in network.named_parameters()}
        step.loss[phase].copy_(total)
        if phase == "D_main":
            step._update_ema()

    def _losses(self, phase: str, inputs: Draw) -> Iterator[Tensor]:
        """Each piece's share of the phase's loss; they sum to the loss of the whole batch."""
        step, w = self.step, self.step.workload
        if phase == "G_pl":
            yield from self._path_length(inputs.phases[phase])
            return
        w_avg = step.G.mapping.w_avg.clone()
        for samples in chunks(w.batch, w.mbstd_group, self.chunk):
            share = len(samples) / w.batch
            real = inputs.real[samples].to(device=self.device, dtype=step.dtype)
            if phase == "D_r1":
                yield share * losses.d_r1(step.D, real, w.gamma, w.r1_interval, step.amp)
                continue
            part = inputs.phases[phase].part(samples, self.device, step.dtype)
            if phase == "G_main":
                yield share * losses.g_main(step.G, step.D, part, w.style_mixing, step.amp)
            else:
                yield share * losses.d_main(step.G, step.D, part, real, w.style_mixing, step.amp)
        if phase == "G_main":  # each piece moved the average; what counts is the whole batch, once
            step.G.mapping.w_avg.copy_(w_avg)
            with torch.no_grad():
                z = inputs.phases[phase].z[: w.batch].to(device=self.device, dtype=step.dtype)
                step.G.mapping.track(step.G.mapping(z))

    def _path_length(self, inputs: PhaseDraw) -> Iterator[Tensor]:
        """Two passes: the running mean moves by the whole batch's lengths before any piece's penalty is known."""
        step, w = self.step, self.step.workload
        pieces = torch.arange(inputs.batch).split(self.chunk)
        parts = [(len(p) / inputs.batch, inputs.part(p, self.device, step.dtype)) for p in pieces]

        def penalty(part: PhaseDraw, mean: Tensor, decay: float) -> Tensor:
            return losses.g_pl(
                step.G, part, mean, decay, w.pl_weight, w.pl_interval, w.style_mixing, step.amp
            )

        if len(parts) == 1:
            yield penalty(parts[0][1], step.pl_mean, w.pl_decay)
            return
        seen = torch.zeros_like(step.pl_mean)
        for share, part in parts:
            mean = torch.zeros_like(seen)
            penalty(part, mean, 1.0)  # decay 1: `mean` becomes this piece's mean length
            seen += share * mean
        step.pl_mean.lerp_(seen, w.pl_decay)
        for share, part in parts:
            yield share * penalty(part, step.pl_mean, 0.0)


def chunks(batch: int, group: int, size: int) -> list[Tensor]:
    """Sample numbers in pieces of about ``size``, each of whole minibatch-std groups in the order that keeps them groups.

    Groups are strided (sample n is in group n mod (N / group)), and within a piece they must be strided again.
    """
    group = min(group, batch)
    table = torch.arange(batch).view(group, batch // group)
    return [columns.reshape(-1) for columns in table.split(max(1, size // group), dim=1)]


def observe(step: TrainingStep, phase: str, run: Callable[[], None]) -> Outcome:
    """Run a phase and see what it computed: loss, gradients, and what each tensor of the state moved by, float64.

    ``untouched`` is how far everything moved that this phase has no business with.
    """
    watched = {"G": dict(step.G.named_parameters()), "D": dict(step.D.named_parameters())}
    watched["ema"] = dict(step.G_ema.named_parameters()) | dict(step.G_ema.named_buffers())
    watched["G"] |= {"mapping.w_avg": step.G.mapping.w_avg, "pl_mean": step.pl_mean}
    before = {net: {k: t.detach().clone() for k, t in named.items()} for net, named in watched.items()}
    run()
    moved = {
        net: {k: t.detach().double() - before[net][k].double() for k, t in named.items()}
        for net, named in watched.items()
    }
    own = phase[0]
    gradients = step.gradients.get(phase, {})
    parameters = (step.G if own == "G" else step.D).named_parameters()
    seen = {
        "loss": {"loss": step.loss[phase].detach().double().clone()},
        "gradient": {
            k: gradients[k].detach().double() if k in gradients else torch.zeros_like(p, dtype=torch.float64)
            for k, p in parameters
        },
        "update": moved.pop(own),
    }
    if phase == "D_main":
        seen["ema"] = moved.pop("ema")
    rest = [t.abs().max() for named in moved.values() for t in named.values()]
    return seen | {"untouched": {"others": torch.stack(rest).max()}}


def adopt(step: TrainingStep, state: State) -> None:
    """Put networks, averages and optimizers to ``state``: in place where the step is prepared (graphs hold addresses)."""
    for name in ("G", "D", "G_ema"):
        getattr(step, name).load_state_dict(state[name])
    step.pl_mean.copy_(state["pl_mean"])
    for name in ("opt_G", "opt_D"):
        optimizer = getattr(step, name)
        if step.prepared:
            step._load_optimizer(optimizer, state[name])
        else:
            saved = {k: {n: t.clone() for n, t in moments.items()} for k, moments in state[name].items()}
            optimizer.load_state_dict(
                {"state": saved, "param_groups": optimizer.state_dict()["param_groups"]}
            )


def shared_state(workload: Workload, device: str, chunk: int, tell: Tell) -> State:
    """``STEPS`` steps of the FP32 baseline, then noise strengths and biases moved off zero."""
    exact = Exact(workload, "fp32", device, chunk)
    for index in range(STEPS):
        inputs = draw(workload, 100 + index)
        exact.run("G_main", inputs)
        if index % workload.pl_interval == 0:
            exact.run("G_pl", inputs)
        exact.run("D_main", inputs)
        if index % workload.r1_interval == 0:
            exact.run("D_r1", inputs)
        tell(f"shared state, step {index + 1} of {STEPS}")
    generator = torch.Generator().manual_seed(1)
    for module in [*exact.step.G.modules(), *exact.step.D.modules()]:
        gain = getattr(module, "bias_gain", 1.0)
        for name, scale in (("bias", NUDGE / gain), ("noise_strength", NUDGE)):
            tensor = getattr(module, name, None)
            if tensor is not None:
                number = torch.randn(tensor.shape, generator=generator)
                tensor.data.add_((scale * (number + 0.5 * number.sign())).to(tensor))
    state = exact.step.state_dict()
    kept = {name: state[name] for name in ("G", "D", "G_ema", "opt_G", "opt_D", "pl_mean")}
    return _map(kept, lambda t: t.detach().cpu().clone())


def compute(
    workload: Workload, state: State, device: str, chunk: int, tell: Tell
) -> list[dict[str, Outcome]]:
    """All phases for every replay in FP64, each from ``state``; float32 on the CPU (differences are taken before)."""
    exact = Exact(workload, "fp64", device, chunk)
    outcomes = []
    for number in range(REPLAYS):
        inputs, outcome = draw(workload, number), {}
        for phase in PHASES:
            adopt(exact.step, state)
            seen = observe(exact.step, phase, lambda phase=phase, inputs=inputs: exact.run(phase, inputs))
            outcome[phase] = _map(seen, lambda t: t.float().cpu())
            tell(f"FP64 reference, {phase}")
        outcomes.append(outcome)
    return outcomes


def get(workload: Workload, device: str, cache: Path | None = None, tell: Tell | None = None) -> Reference:
    """The reference of a workload, made now or found in ``cache``."""
    workload = dataclasses.replace(workload, data=None)
    folder = (cache or CACHE) / key(workload)
    tell = tell or (lambda text: None)
    if not (folder / "reference.pt").exists():
        _write(folder, _make(workload, device, tell))
        _prune(folder)
    made = torch.load(folder / "reference.pt", map_location="cpu", weights_only=True)
    used = dataclasses.replace(workload, batch=made["batch"])
    return Reference(
        used, made["made_on"], made["chunk"], made["notes"], made["state"], made["outcomes"], folder
    )


def key(workload: Workload) -> str:
    """Of workload x source of the model and of this file x torch (whose generator the inputs come from)."""
    digest = hashlib.sha256(json.dumps(workload.to_dict() | {"data": None}, sort_keys=True).encode())
    sources = sorted(Path(stylegan_lite.__file__).parent.glob("*.py"))
    for path in [*sources, Path(__file__)]:
        digest.update(path.name.encode() + path.read_bytes())
    digest.update(torch.__version__.encode())
    return digest.hexdigest()[:16]


def attempts(workload: Workload, device: str) -> list[tuple[str, int, int]]:
    """(device, batch, samples at a time), best first: smaller pieces, then batch 4, then the CPU."""
    n, group = workload.batch, min(workload.mbstd_group, workload.batch)
    sizes, size = [n], n // 2
    while size >= group:
        sizes.append(size // group * group)
        size //= 2
    tries = [(device, n, size) for size in sizes]
    if n > SMALL_BATCH and SMALL_BATCH % min(group, SMALL_BATCH) == 0:
        tries.append((device, SMALL_BATCH, SMALL_BATCH))
    if device != "cpu":
        tries.append(("cpu", *tries[-1][1:]))
    return tries


def _make(workload: Workload, device: str, tell: Tell) -> dict[str, Any]:
    states: dict[int, State] = {}  # by batch; made on the GPU where it can be: in FP32 it is cheap
    notes, skip_device = [], False
    tries = attempts(workload, device)
    for where, batch, chunk in tries:
        if skip_device and where != "cpu":
            continue
        used = dataclasses.replace(workload, batch=batch)
        try:
            if batch not in states:
                states[batch] = shared_state(used, where, chunk, tell)
            outcomes = compute(used, states[batch], where, chunk, tell)
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            if (where, batch, chunk) == tries[-1]:
                raise
            skip_device = "out of memory" not in str(error).lower()  # else smaller pieces will not help
            notes.append(f"{where}, batch {batch}, {chunk} at a time: {one_line(str(error))}")
        else:
            found = {"made_on": where, "batch": batch, "chunk": chunk, "notes": notes}
            return found | {"state": states[batch], "outcomes": outcomes}
        if where == "cuda":
            torch.cuda.empty_cache()
    raise AssertionError("unreachable: the last attempt raises")


def _write(folder: Path, content: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / "reference.pt") as temporary:
        torch.save(content, temporary)


def _prune(newest: Path) -> None:
    """Keep the ``KEPT`` entries made last."""
    entries = sorted(newest.parent.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in entries[KEPT:]:
        if path != newest:
            shutil.rmtree(path, ignore_errors=True)


def _map(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(tree, dict):
        return {key: _map(value, change) for key, value in tree.items()}
    return change(tree) if isinstance(tree, Tensor) else tree
