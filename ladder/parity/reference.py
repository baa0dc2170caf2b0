"""The right outcome of a training step: a shared state, fixed inputs, and the plain-PyTorch baseline in FP64 on them.

The shared state is a point of a real training run: ``STEPS`` steps of the baseline in, with Adam's moments filled.
Noise strengths and biases are moved away from zero, where half of the gradient paths would carry nothing. The state
is made in FP32, since the rungs hold FP32 weights. Then every phase runs once in FP64 for each of ``REPLAYS`` sets of
inputs.

FP64 gradients accumulate over pieces of the batch, so that a large one fits. Pieces are whole minibatch-std groups:
samples see each other only inside a group, so the pieces' gradients sum to those of the batch. (Two running means see
the whole batch, and move once for it.) If even one group does not fit, the batch becomes 4, then the CPU computes, and
a note says why. State and outcome are files of tensors under ``.cache/parity/``, keyed by workload and the source of
the model, never under results.

A phase inside a whole step's graph cannot be replayed from the shared state by itself, and should not be. That D_main
sees the new weights of G_main is part of what the graph must get right. So for such a step the reference runs the same
sequences in FP64, once for each kind of step. Each phase's loss and gradients are compared, and the moves of the step
as a whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import stylegan_lite
from ladder.core import files
from ladder.core.errors import one_line
from ladder.core.files import digest_sources, list_below, one_at_a_time, replace_file
from ladder.parity import adam_state
from ladder.parity.adam_state import State
from stylegan_lite import losses
from stylegan_lite.config import Recipe, Workload
from stylegan_lite.step import PHASES, TrainingStep

CACHE = files.cache_folder("parity")
KEPT = 4  # cache entries; one of the article's workload is 3 GB
STEPS = 32
REPLAYS = 2
FIELDS = ("made_on", "chunk", "notes", "state", "outcomes")  # of a reference's file, beside the batch
RESIDENT = 0.1  # of a GPU's memory: the reference gets no more, the steps need it
NUDGE = 0.1  # added to noise strengths and biases, as they are applied
SMALL_BATCH = 4
MOST_WORK = 4e10  # of a batch, by `work`: a little more than article-b32 and stylegan2-512 have

# Quantity ("loss", "gradient", "update", "ema", "untouched", and those of `adam_state`) -> name -> tensor.
Outcome = dict[str, dict[str, Tensor]]
Kind = tuple[str, ...]  # of a step: its phases in order
Tell = Callable[[str], None]


@dataclass(frozen=True)
class PhaseDraw:
    """Random numbers of one phase, float32 on the CPU, in the shapes of :class:`stylegan_lite.inputs.PhaseInputs`.

    The names are those of ``PhaseInputs``, so that a loss can read a part of the draw.
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
        """Return the numbers of these samples alone."""
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
    """All inputs of one step: latents, noise, cutoffs, path noise, and real images [N, 3, R, R]."""

    phases: dict[str, PhaseDraw]
    real: Tensor

    def share(self, rank: int, ranks: int) -> Draw:
        """Return the samples of one of several ranks."""
        mine = {
            phase: drawn.part(torch.arange(rank, drawn.batch, ranks), "cpu", torch.float32)
            for phase, drawn in self.phases.items()
        }
        return Draw(mine, self.real[rank::ranks])


def draw_inputs(workload: Workload, number: int) -> Draw:
    """Return the ``number``-th set of inputs: a function of the workload's shapes and the number."""
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
    """The baseline's step in pieces of ``chunk`` samples whose gradients are summed: the same step in less memory."""

    def __init__(self, workload: Workload, precision: str, device: str, chunk: int) -> None:
        recipe = Recipe.from_dict({"precision": precision})
        self.step = TrainingStep(
            dataclasses.replace(workload, data=None), recipe, device=device, seed=workload.batch
        )
        self.chunk, self.device = chunk, device

    def run(self, phase: str, inputs: Draw) -> None:
        """Run one phase, with its optimizer step (and the moving average), as ``TrainingStep.run_phase`` does it."""
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
        if network is step.D:
            step.D.spectral_weights.advance()
        step.gradients[phase] = {name: p.grad for name, p in network.named_parameters()}
        step.loss[phase].copy_(total)
        if phase == "D_main":
            step._update_ema()

    def _losses(self, phase: str, inputs: Draw) -> Iterator[Tensor]:
        """Yield each piece's share of the phase's loss; they sum to the loss of the whole batch."""
        step, w = self.step, self.step.workload
        if phase == "G_pl":
            yield from self._path_length(inputs.phases[phase])
            return
        w_avg = step.G.mapping.w_avg.clone()
        for samples in split_chunks(w.batch, w.mbstd_group, self.chunk):
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
        if phase == "G_main":  # each piece moved the average; only the whole batch counts, once
            step.G.mapping.w_avg.copy_(w_avg)
            with torch.no_grad():
                z = inputs.phases[phase].z[: w.batch].to(device=self.device, dtype=step.dtype)
                step.G.mapping.track(step.G.mapping(z))

    def _path_length(self, inputs: PhaseDraw) -> Iterator[Tensor]:
        """Yield each piece's penalty, in two passes.

        The running mean moves by the whole batch's lengths before any piece's penalty is known.
        """
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
            penalty(part, mean, 1.0)  # with decay 1, `mean` becomes this piece's mean length
            seen += share * mean
        step.pl_mean.lerp_(seen, w.pl_decay)
        for share, part in parts:
            yield share * penalty(part, step.pl_mean, 0.0)


def split_chunks(batch: int, group: int, size: int) -> list[Tensor]:
    """Return sample numbers in pieces of about ``size``: whole minibatch-std groups, in order.

    Groups are strided (sample n is in group n mod (N / group)), and within a piece they must be strided again.
    """
    group = min(group, batch)
    table = torch.arange(batch).view(group, batch // group)
    return [columns.reshape(-1) for columns in table.split(max(1, size // group), dim=1)]


@dataclass(frozen=True)
class Reference:
    """FP64 outcomes of every phase for each replay; ``workload.batch`` may have had to shrink.

    Right after reading, the tensors are a file's memory, on the CPU. ``on`` puts them on the device of the
    comparison. ``kinds`` are those of a step that is launched whole; without them it is compared phase by phase.
    """

    workload: Workload
    made_on: str
    chunk: int
    notes: list[str]
    state: State
    outcomes: list[dict[str, Outcome]]
    folder: Path
    kinds: list[Kind] = dataclasses.field(default_factory=list)
    tell: Tell = lambda text: None
    held: dict[str, list[dict[str, Outcome]]] = dataclasses.field(
        default_factory=dict
    )  # of whole steps, by device

    def draws(self) -> list[Draw]:
        """Return the inputs that belong to the outcomes."""
        return [draw_inputs(self.workload, replay) for replay in range(REPLAYS)]

    def on(self, device: str) -> Reference:
        """Return the reference on the device, once for all phases and spellings; unchanged if it takes too much memory.

        Single numbers of the state stay on the CPU: Adam's step counts belong there unless they are captured.
        """
        tree = {"state": self.state, "outcomes": dict(enumerate(self.outcomes))}
        if (there := move_resident(tree, device, but={"state"})) is tree:
            return self
        return dataclasses.replace(self, state=there["state"], outcomes=list(there["outcomes"].values()))

    def get_exact(self, number: int, device: str) -> dict[str, Outcome]:
        """Return the right outcomes of a replay by phase, or of whole steps by label, for a comparison on the device.

        Those of whole steps are made now or found beside the reference. They go to the device if they take little of
        it, once for all comparisons. Else each spelling of the budget would copy gigabytes anew.
        """
        if not self.kinds:
            return self.outcomes[number]
        if device not in self.held:
            whole = dict(enumerate(compute_whole(self)))
            self.held[device] = list(move_resident(whole, device).values())
        return self.held[device][number]


def observe_phase(step: TrainingStep, what: str | Kind, run: Callable[[], None]) -> dict[str, Outcome]:
    """Run a phase, or a whole step. Return its outcome by label: loss, gradients, and how far the state moved, float64.

    Adam's state moves in its own dtype. Of a phase alone the entry ``untouched`` is how far anything moved that it must
    not move. That includes the other network's moments and step counts.
    """
    before, adam = clone_tensors(step), adam_state.clone_states(step)
    run()
    moves, adam = measure_moves(step, before), adam_state.measure_moves(step, adam)
    if not isinstance(what, str):
        seen = {phase: read_computed(step, phase) for phase in what}
        seen["G_main"] |= {"update": moves["G"]} | adam["G"]
        seen["D_main"] |= {"update": moves["D"], "ema": moves["ema"]} | adam["D"]
        return {label_phase(phase, what): outcome for phase, outcome in seen.items()}
    outcome = read_computed(step, what) | {"update": moves.pop(what[0])} | adam.pop(what[0])
    if what == "D_main":
        outcome["ema"] = moves.pop("ema")
    rest = [t.abs().max() for named in moves.values() for t in named.values()]
    rest += [
        t.abs().max().to(rest[0]) for each in adam.values() for named in each.values() for t in named.values()
    ]
    return {what: outcome | {"untouched": {"others": torch.stack(rest).max()}}}


def label_phase(phase: str, kind: Kind) -> str:
    """Return the name of a phase of a whole step among errors, budgets and findings."""
    return f"{phase} in {'+'.join(kind)}"


def of_network(label: str) -> list[str]:
    """Return the labels of this phase's network in the same step, in order. A phase alone gets its own label."""
    phase, _, kind = label.partition(" in ")
    return [f"{each} in {kind}" for each in kind.split("+") if each[0] == phase[0]] if kind else [label]


def observe_all(
    step: TrainingStep, ref: Reference, run: Callable[[Any], None], what: str
) -> Iterator[tuple[str, dict[str, Outcome]]]:
    """Run each phase, or each kind of step, from the shared state on loaded inputs. Yield (label, all its outcomes)."""
    for each in ref.kinds or PHASES:
        adopt_state(step, ref.state)
        outcomes = observe_phase(step, each, functools.partial(run, each))
        yield from ((name, outcomes) for name in outcomes)
        ref.tell(f"{each if isinstance(each, str) else '+'.join(each)}, {what}")


def watch_tensors(step: TrainingStep) -> dict[str, dict[str, Tensor]]:
    """Return everything that a phase may move: {"G" | "D" | "ema": {name: tensor}}."""
    tensors = {"G": dict(step.G.named_parameters()), "D": dict(step.D.named_parameters())}
    tensors["D"] |= dict(step.D.named_buffers())  # of spectral normalization; no other layer has any
    tensors["ema"] = dict(step.G_ema.named_parameters()) | dict(step.G_ema.named_buffers())
    tensors["G"] |= {"mapping.w_avg": step.G.mapping.w_avg, "pl_mean": step.pl_mean}
    return tensors


def clone_tensors(step: TrainingStep) -> dict[str, dict[str, Tensor]]:
    return {
        net: {k: t.detach().clone() for k, t in named.items()} for net, named in watch_tensors(step).items()
    }


def measure_moves(step: TrainingStep, before: dict[str, dict[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """Return how far each tensor moved since ``before``, float64."""
    return {
        net: {k: t.detach().double() - before[net][k].double() for k, t in named.items()}
        for net, named in watch_tensors(step).items()
    }


def read_computed(step: TrainingStep, phase: str) -> Outcome:
    """Return a phase's loss and gradients, float64. A parameter without a gradient has zeros."""
    gradients = step.gradients.get(phase, {})
    parameters = (step.G if phase[0] == "G" else step.D).named_parameters()
    return {
        "loss": {"loss": step.loss[phase].detach().double().clone()},
        "gradient": {
            k: gradients[k].detach().double() if k in gradients else torch.zeros_like(p, dtype=torch.float64)
            for k, p in parameters
        },
    }


def adopt_state(step: TrainingStep, state: State) -> None:
    """Set networks, averages and optimizers to ``state``, in place if the step is prepared (graphs)."""
    for name in ("G", "D", "G_ema"):
        getattr(step, name).load_state_dict(state.get(name))
    step.pl_mean.copy_(state["pl_mean"])
    for optimizer, held in ((step.opt_G, state["opt_G"]), (step.opt_D, state["opt_D"])):
        if step.prepared:
            step._load_optimizer(optimizer, held)
        else:
            saved = {k: {n: t.clone() for n, t in moments.items()} for k, moments in held.items()}
            optimizer.load_state_dict(
                {"state": saved, "param_groups": optimizer.state_dict()["param_groups"]}
            )


def shared_state(workload: Workload, device: str, chunk: int, tell: Tell) -> State:
    """Run ``STEPS`` steps of the FP32 baseline, then move noise strengths and biases off zero. Return the state."""
    baseline = Exact(workload, "fp32", device, chunk)
    for index in range(STEPS):
        inputs = draw_inputs(workload, 100 + index)
        baseline.run("G_main", inputs)
        if index % workload.pl_interval == 0:
            baseline.run("G_pl", inputs)
        baseline.run("D_main", inputs)
        if index % workload.r1_interval == 0:
            baseline.run("D_r1", inputs)
        tell(f"shared state, step {index + 1} of {STEPS}")
    generator = torch.Generator().manual_seed(1)
    for module in [*baseline.step.G.modules(), *baseline.step.D.modules()]:
        gain = getattr(module, "bias_gain", 1.0)
        for name, scale in (("bias", NUDGE / gain), ("noise_strength", NUDGE)):
            tensor = getattr(module, name, None)
            if tensor is not None:
                number = torch.randn(tensor.shape, generator=generator)
                tensor.data.add_((scale * (number + 0.5 * number.sign())).to(tensor))
    state = baseline.step.state_dict()
    tensors = {name: state[name] for name in ("G", "D", "G_ema", "opt_G", "opt_D", "pl_mean")}
    return _map_tree(
        tensors | {"betas": adam_state.read_betas(baseline.step)}, lambda t: t.detach().cpu().clone()
    )


def compute_reference(
    workload: Workload, state: State, device: str, chunk: int, tell: Tell
) -> list[dict[str, Outcome]]:
    """Run all phases for every replay in FP64, each from ``state``. Return float32 on the CPU, as `to_cpu` does."""
    alone = Reference(workload, device, chunk, [], state, [], Path(), tell=tell)
    return compute_all(alone)


def compute_all(ref: Reference) -> list[dict[str, Outcome]]:
    baseline = Exact(ref.workload, "fp64", ref.made_on, ref.chunk)
    outcomes = []
    for inputs in ref.draws():

        def run(what: str | Kind, inputs: Draw = inputs) -> None:
            for phase in [what] if isinstance(what, str) else what:
                baseline.run(phase, inputs)

        replay: dict[str, Outcome] = {}
        for name, seen in observe_all(baseline.step, ref, run, "FP64 reference"):
            replay[name] = to_cpu(seen[name])
        outcomes.append(replay)
    return outcomes


def compute_whole(ref: Reference) -> list[dict[str, Outcome]]:
    """Return FP64 outcomes of every kind of step for each replay, made now or found beside the reference."""
    path, kinds = ref.folder / "together.pt", [*map(list, ref.kinds)]
    with one_at_a_time(path):
        if path.exists():
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            if content.get("made_of") == kinds:
                return content["outcomes"]
        outcomes = compute_all(ref)
        with replace_file(path) as temporary:
            torch.save({"made_of": kinds, "outcomes": outcomes}, temporary)
    return outcomes


def get_reference(
    workload: Workload,
    device: str,
    cache: Path | None = None,
    tell: Tell | None = None,
    kinds: Sequence[Kind] = (),
) -> Reference:
    """Return the reference of a workload, computed now or read from ``cache``."""
    workload = dataclasses.replace(workload, data=None)
    folder = (cache or CACHE) / make_key(workload)
    tell = tell or (lambda text: None)
    with one_at_a_time(folder / "reference.pt"):
        if not (folder / "reference.pt").exists():
            made = _make_reference(workload, device, tell)
            folder.mkdir(parents=True, exist_ok=True)
            content = {name: getattr(made, name) for name in FIELDS} | {"batch": made.workload.batch}
            with replace_file(folder / "reference.pt") as temporary:
                torch.save(content, temporary)
            _prune_cache(folder)
    # Mapped, not read: a process touches only those of the 3 GB that it copies to the GPU, from the shared page cache.
    stored = torch.load(folder / "reference.pt", map_location="cpu", weights_only=True, mmap=True)
    used = dataclasses.replace(workload, batch=stored["batch"])
    held = {name: stored[name] for name in FIELDS}
    return Reference(used, **held, folder=folder, kinds=list(kinds), tell=tell)


def made_by(*files: str) -> list[str]:
    """Return digests of these modules' sources. A file made by other sources is made anew."""
    return [digest_sources(path.parent, [path])[:16] for path in map(Path, files)]


def make_key(workload: Workload) -> str:
    """Return the cache key: a hash of workload, sources of model and reference, and versions of torch and cuDNN.

    Torch counts because its generator makes the inputs.
    """
    model, own = Path(stylegan_lite.__file__).parent, Path(__file__)
    sources = [digest_sources(model, list_below(model, (".py",))), digest_sources(own.parent, [own])]
    parts = [workload.to_dict() | {"data": None}, sources, torch.__version__, torch.backends.cudnn.version()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def list_attempts(workload: Workload, device: str) -> list[tuple[str, int, int]]:
    """Return (device, batch, samples at a time), best first: smaller pieces, then batch 4, then the CPU.

    The batch is halved, in whole groups, while FP64 of all of it would take too long.
    """
    n, group = workload.batch, min(workload.mbstd_group, workload.batch)
    while n * estimate_work(workload) > MOST_WORK and n // 2 >= group:
        n = n // 2 // group * group
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


def estimate_work(workload: Workload) -> float:
    """Return a sample's work up to a factor: pixels times channels squared, summed over the resolutions."""
    return float(sum(size**2 * workload.fmaps(size) ** 2 for size in workload.resolutions))


def _make_reference(workload: Workload, device: str, tell: Tell) -> Reference:
    states: dict[int, State] = {}  # by batch; made on the GPU if possible: in FP32 it is cheap
    notes, skip_device = [], False
    tries = list_attempts(workload, device)
    if (most := tries[0][1]) < workload.batch:
        notes.append(f"batch {most} of {workload.batch}: FP64 of more would take too long")
    for where, batch, chunk in tries:
        if skip_device and where != "cpu":
            continue
        used = dataclasses.replace(workload, batch=batch)
        try:
            if batch not in states:
                states[batch] = shared_state(used, where, chunk, tell)
            outcomes = compute_reference(used, states[batch], where, chunk, tell)
            return Reference(used, where, chunk, notes, states[batch], outcomes, Path())
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            if (where, batch, chunk) == tries[-1]:
                raise
            skip_device = "out of memory" not in str(error).lower()  # else smaller pieces will not help
            notes.append(f"{where}, batch {batch}, {chunk} at a time: {one_line(str(error))}")
        if where == "cuda":
            torch.cuda.empty_cache()
    raise AssertionError("unreachable: the last attempt raises")


def _prune_cache(newest: Path) -> None:
    """Keep the ``KEPT`` entries made last."""
    entries = []
    for path in newest.parent.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another run has just removed it
            entries.append((path.stat().st_mtime, path))
    for _, path in sorted(entries, reverse=True)[KEPT:]:
        if path != newest:
            shutil.rmtree(path, ignore_errors=True)


def move_resident(tree: dict[Any, Any], device: str, but: Collection[str] = ()) -> dict[Any, Any]:
    """Return the tensors of a tree on the device, or the tree itself if they take too much memory.

    All of them are moved, as they take part in computations: a loss and the gradient of a noise strength are single
    numbers, too. In the entries of ``but`` single numbers stay on the CPU, as Adam's step counts do in a state.
    """
    if device != "cuda" or _count_bytes(tree) > RESIDENT * torch.cuda.get_device_properties(0).total_memory:
        return tree

    def placed(key: Any, each: Any) -> Any:
        return _map_tree(each, lambda t: t.to(device) if t.ndim or key not in but else t)

    try:
        return {key: placed(key, each) for key, each in tree.items()}
    except torch.OutOfMemoryError:
        return tree


def _count_bytes(tree: Any) -> int:
    if isinstance(tree, dict):
        return sum(map(_count_bytes, tree.values()))
    return tree.nbytes if isinstance(tree, Tensor) else 0


def to_cpu(tree: Any) -> Any:
    """Return outcomes as they are kept: float32 (differences have been taken) on the CPU, without Adam's state.

    The expected move of that state follows from the gradients (``adam_state.expect_moves``).
    """
    if isinstance(tree, dict):
        return {key: to_cpu(value) for key, value in tree.items() if key not in adam_state.QUANTITIES}
    return tree.float().cpu()


def _map_tree(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(tree, dict):
        return {key: _map_tree(value, change) for key, value in tree.items()}
    return change(tree) if isinstance(tree, Tensor) else tree
