"""The right outcome of a training step: a shared state, fixed inputs, and the plain-PyTorch baseline in FP64 on them.

The shared state is a point of a real training run: ``STEPS`` steps of the baseline in, with Adam's moments filled.
Noise strengths and biases are moved away from zero, where half of the gradient paths would carry nothing. The state
is made in FP32, since the rungs hold FP32 weights. Then every phase runs once in FP64 for each of ``REPLAYS`` sets of
inputs.

FP64 gradients of StyleGAN2 accumulate over micro-batches, so that a large batch fits (`stylegan_lite.step.micro`).
If even one group of minibatch standard deviation does not fit, the batch becomes 4, then the CPU computes, and a note
says why. Another pair may take statistics over its batch, so all of it is computed at once, on the GPU or on the CPU.
State and outcome are files of tensors under ``.cache/parity/``, keyed by workload and the source of the model, never
under results.

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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
from ladder.receipts.evidence import replace_method
from stylegan_lite.config import Workload
from stylegan_lite.shares import holds_parts
from stylegan_lite.step import Input, TrainingStep, saving
from stylegan_lite.step.inputs import Value, take_samples
from stylegan_lite.step.pair import Declared

CACHE = files.cache_folder("parity")
KEPT = 4  # cache entries; one of the article's workload is 3 GB
STEPS = 32
REPLAYS = 2
DRAWN = ("normal", "uniform", "labels")
FIELDS = ("made_on", "chunk", "notes", "state", "outcomes")  # of a reference's file, beside the batch
RESIDENT = 0.1  # of a GPU's memory: the reference gets no more, the steps need it
NUDGE = 0.1  # added to noise strengths and biases, as they are applied
SMALL_BATCH = 4
MOST_WORK = 4e10  # of a batch, by `work`: a little more than article-b32 and stylegan2-512 have

# Quantity ("loss", "gradient", "update", "ema", "buffers", "untouched", and those of `adam_state`) -> name -> tensor.
Outcome = dict[str, dict[str, Tensor]]
Kind = tuple[str, ...]  # of a step: its phases in order
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Draw:
    """All inputs of one step, float32 on the CPU: by phase and name, images [N, 3, R, R], and a pair's own batch."""

    declared: dict[str, Declared]
    phases: dict[str, dict[str, Value]]
    real: Tensor | None
    own: dict[str, Tensor]

    def share(self, rank: int, ranks: int) -> Draw:
        """Return the samples of one of several ranks."""
        which = slice(rank, None, ranks)

        def take(one: Any, value: Any) -> Any:
            if isinstance(one, Input):
                return take_samples(value, one.times, which)
            return [take(*pair) for pair in zip(one, value, strict=True)]

        mine = {
            phase: {name: take(self.declared[phase][name], value) for name, value in drawn.items()}
            for phase, drawn in self.phases.items()
        }
        return Draw(self.declared, mine, None if self.real is None else self.real[which], self.own)


def draw_inputs(step: TrainingStep, number: int) -> Draw:
    """Return the ``number``-th set of inputs: a function of their shapes and the number."""
    generator = torch.Generator().manual_seed(7_919 * (number + 1))

    def draw(one: Any) -> Any:
        if not isinstance(one, Input):
            return [draw(each) for each in one]
        if one.source == "labels":
            return torch.randint(one.classes, one.shape, generator=generator)
        return (torch.randn if one.source == "normal" else torch.rand)(one.shape, generator=generator)

    def is_drawn(one: Any) -> bool:
        return all(is_drawn(each) for each in one) if not isinstance(one, Input) else one.source in DRAWN

    declared = {phase: inputs.declared for phase, inputs in step.given.items()}
    phases = {
        phase: {name: draw(one) for name, one in inputs.items() if is_drawn(one)}
        for phase, inputs in declared.items()
    }
    real = None
    if step.real is not None:
        n, (c, h, w) = step.workload.batch, step.real.shape[1:]
        coarse = torch.randn((n, c, 8, 8), generator=generator)
        coarse = torch.nn.functional.interpolate(coarse, size=(h, w), mode="bilinear")
        real = 0.5 * coarse + 0.1 * torch.randn((n, c, h, w), generator=generator)
        real = real.clamp(-1, 1)  # smooth, as photographs are
    return Draw(declared, phases, real, step.pair.batch(7_919 + number) if step.data else {})


def load_inputs(step: TrainingStep, inputs: Draw) -> None:
    """Copy given numbers into the step's static buffers, each into its view (layouts differ between recipes).

    One of several ranks takes its samples of the total batch.
    """
    if step.data:
        step.feed.load(inputs.own)
    if step.ranks.size > 1:
        inputs = inputs.share(step.ranks.rank, step.ranks.size)
    for phase, drawn in inputs.phases.items():
        step.given[phase].load(drawn)
    if step.real is not None:
        step.real.copy_(inputs.real)


@contextlib.contextmanager
def inputs_are_ours(step: TrainingStep) -> Iterator[None]:
    """Run phases as they are timed, except that nothing is drawn into their buffers."""
    with contextlib.ExitStack() as stack:
        for inputs in step.inputs.values():
            stack.enter_context(replace_method(inputs, "fill", lambda: None))
        yield


class Exact:
    """The baseline's step in micro-batches of about ``chunk`` samples: the same step in less memory."""

    def __init__(self, workload: Any, precision: str, device: str, chunk: int) -> None:
        parts = count_parts(workload, chunk)
        fields = {"precision": precision} | ({"micro_batches": parts} if parts > 1 else {})
        self.step = stylegan_lite.make_step(
            workload.to_dict() | {"data": None}, fields, device=device, seed=workload.batch
        )
        self.step.keep_gradients = True

    def run(self, phase: str, inputs: Draw) -> None:
        """Run one phase, with its optimizer step (and the averages), on given inputs."""
        load_inputs(self.step, inputs)
        if self.step.hooks.updates_all:
            for parameter in self.step.weights[self.step.owners[phase]]:  # zeros, not None: set_to_none=False
                parameter.grad = torch.zeros_like(parameter)
        with inputs_are_ours(self.step):
            self.step.run_phase(phase)


def count_parts(workload: Any, chunk: int) -> int:
    """Return the fewest micro-batches of at most ``chunk`` samples with whole minibatch-std groups."""
    batch, group = workload.batch, min(getattr(workload, "mbstd_group", 1), workload.batch)
    return next(
        n for n in range(1, batch + 1) if holds_parts(batch, n, group) and batch // n <= max(chunk, group)
    )


@dataclass(frozen=True)
class Reference:
    """FP64 outcomes of every phase for each replay; ``workload.batch`` may have had to shrink.

    Right after reading, the tensors are a file's memory, on the CPU. ``on`` puts them on the device of the
    comparison. ``kinds`` are those of a step that is launched whole; without them it is compared phase by phase.
    """

    workload: Any
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

    @staticmethod
    def draws(step: TrainingStep) -> list[Draw]:
        """Return the inputs that belong to the outcomes."""
        return [draw_inputs(step, replay) for replay in range(REPLAYS)]

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
    not move. That includes the other network's moments and step counts. Buffers of another network may move in some
    pairs (running statistics): ``buffers`` is how far.
    """
    before, adam = clone_tensors(step), adam_state.clone_states(step)
    run()
    moves, adam = measure_moves(step, before), adam_state.measure_moves(step, adam)
    if not isinstance(what, str):
        seen = {phase: read_computed(step, phase) for phase in what}
        for network in step.optimizers:
            main = next((phase for phase in what if step.owners[phase] == network), None)
            if main is not None:
                seen[main] |= {"update": moves[network]} | adam.get(network, {})
        if "ema" in moves:
            seen[step.last]["ema"] = moves["ema"]
        return {label_phase(phase, what): outcome for phase, outcome in seen.items()}
    owner = step.owners[what]
    outcome = read_computed(step, what) | {"update": moves.pop(owner)} | adam.pop(owner, {})
    if what == step.last and "ema" in moves:
        outcome["ema"] = moves.pop("ema")
    if step.lets_buffers_move:
        buffers = {
            f"{network}.{name}": moves[network].pop(name)
            for network in moves.keys() & step.networks.keys()
            for name, _ in step.networks[network].named_buffers()
            if name in moves[network]
        }
        outcome |= {"buffers": buffers} if buffers else {}
    rest = [t.abs().max() for named in moves.values() for t in named.values()]
    rest += [t.abs().max() for each in adam.values() for named in each.values() for t in named.values()]
    place = step.loss[what].device
    off = (
        torch.stack([each.to(place).double() for each in rest]).max()
        if rest
        else torch.zeros((), device=place)
    )
    return {what: outcome | {"untouched": {"others": off}}}


def label_phase(phase: str, kind: Kind) -> str:
    """Return the name of a phase of a whole step among errors, budgets and findings."""
    return f"{phase} in {'+'.join(kind)}"


def of_network(label: str, owners: Mapping[str, str]) -> list[str]:
    """Return the labels of this phase's network in the same step, in order. A phase alone gets its own label."""
    phase, _, kind = label.partition(" in ")
    same = [each for each in kind.split("+") if each and owner_of(each, owners) == owner_of(phase, owners)]
    return [f"{each} in {kind}" for each in same] or [label]


def owner_of(label: str, owners: Mapping[str, str]) -> str:
    """Return the network that a phase trains. Phases of StyleGAN2 begin with its name."""
    phase = label.partition(" in ")[0]
    return owners.get(phase, phase[0])


def observe_all(
    step: TrainingStep, ref: Reference, run: Callable[[Any], None], what: str
) -> Iterator[tuple[str, dict[str, Outcome]]]:
    """Run each phase, or each kind of step, from the shared state on loaded inputs. Yield (label, all its outcomes)."""
    for each in ref.kinds or step.order:
        adopt_state(step, ref.state)
        outcomes = observe_phase(step, each, functools.partial(run, each))
        yield from ((name, outcomes) for name in outcomes)
        ref.tell(f"{each if isinstance(each, str) else '+'.join(each)}, {what}")


def watch_tensors(step: TrainingStep) -> dict[str, dict[str, Tensor]]:
    """Return everything that a phase may move: {network | "ema": {name: tensor}}; of floating-point tensors only."""
    tensors = {name: _named(network) for name, network in step.networks.items()}
    several = len(step.averages) > 1
    for name, average in step.averages.items():
        of = {f"{name}.{key}" if several else key: tensor for key, tensor in _named(average).items()}
        tensors["ema"] = tensors.get("ema", {}) | of
    first = next(iter(step.optimizers))
    tensors[first] |= step.state
    return tensors


def _named(module: torch.nn.Module) -> dict[str, Tensor]:
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: tensor for name, tensor in named.items() if tensor.is_floating_point()}


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
    network = step.owners[phase]
    own = {id(each) for each in step.weights[network]}
    parameters = [(k, p) for k, p in step.networks[network].named_parameters() if id(p) in own]
    return {
        "loss": {"loss": step.loss[phase].detach().double().clone()},
        "gradient": {
            k: gradients[k].detach().double() if k in gradients else torch.zeros_like(p, dtype=torch.float64)
            for k, p in parameters
        },
    }


def adopt_state(step: TrainingStep, state: State) -> None:
    """Set networks, averages and optimizers to ``state``, in place if the step is prepared (graphs)."""
    for name, module in saving.modules(step).items():
        module.load_state_dict(state[name])
    for name, tensor in step.state.items():
        tensor.copy_(state[name])
    for name, optimizer in step.optimizers.items():
        held = state[f"opt_{name}"]
        if step.prepared:
            step._load_optimizer(optimizer, held)
        else:
            saved = _map_tree(held, lambda t: t.clone())
            optimizer.load_state_dict(
                {"state": saved, "param_groups": optimizer.state_dict()["param_groups"]}
            )


def shared_state(workload: Any, device: str, chunk: int, tell: Tell) -> State:
    """Run ``STEPS`` steps of the FP32 baseline, then move noise strengths and biases off zero. Return the state."""
    baseline = Exact(workload, "fp32", device, chunk)
    for index in range(STEPS):
        inputs = draw_inputs(baseline.step, 100 + index)
        for phase in baseline.step.phases(index):
            baseline.run(phase, inputs)
        tell(f"shared state, step {index + 1} of {STEPS}")
    generator = torch.Generator().manual_seed(1)
    networks = [baseline.step.networks[name] for name in baseline.step.optimizers]
    for module in [module for network in networks for module in network.modules()]:
        gain = getattr(module, "bias_gain", 1.0)
        for name, scale in (("bias", NUDGE / gain), ("noise_strength", NUDGE)):
            tensor = getattr(module, name, None)
            if isinstance(tensor, Tensor):
                number = torch.randn(tensor.shape, generator=generator)
                tensor.data.add_((scale * (number + 0.5 * number.sign())).to(tensor))
    state = baseline.step.state_dict()
    step = baseline.step
    names = [*saving.modules(step), *(f"opt_{name}" for name in step.optimizers), *step.state]
    tensors = {name: state[name] for name in names}
    return _map_tree(tensors | {"betas": adam_state.read_betas(step)}, lambda t: t.detach().cpu().clone())


def compute_reference(
    workload: Any, state: State, device: str, chunk: int, tell: Tell
) -> list[dict[str, Outcome]]:
    """Run all phases for every replay in FP64, each from ``state``. Return float32 on the CPU, as `to_cpu` does."""
    alone = Reference(workload, device, chunk, [], state, [], Path(), tell=tell)
    return compute_all(alone)


def compute_all(ref: Reference) -> list[dict[str, Outcome]]:
    baseline = Exact(ref.workload, "fp64", ref.made_on, ref.chunk)
    outcomes = []
    for inputs in ref.draws(baseline.step):

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
    workload: Any,
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


def make_key(workload: Any) -> str:
    """Return the cache key: a hash of workload, sources of model and reference, and versions of torch and cuDNN.

    Torch counts because its generator makes the inputs.
    """
    model, own = Path(stylegan_lite.__file__).parent, Path(__file__)
    sources = [digest_sources(model, list_below(model, (".py",))), digest_sources(own.parent, [own])]
    parts = [workload.to_dict() | {"data": None}, sources, torch.__version__, torch.backends.cudnn.version()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def list_attempts(workload: Any, device: str) -> list[tuple[str, int, int]]:
    """Return (device, batch, samples at a time), best first: smaller pieces, then batch 4, then the CPU.

    The batch is halved, in whole groups, while FP64 of all of it would take too long.
    """
    n = workload.batch
    if not isinstance(workload, Workload):
        return [(device, n, n), *([] if device == "cpu" else [("cpu", n, n)])]
    group = min(workload.mbstd_group, n)
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


def _make_reference(workload: Any, device: str, tell: Tell) -> Reference:
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
