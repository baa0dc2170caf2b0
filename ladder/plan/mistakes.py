"""Common mistakes of GAN training, each beside one clean step (`ladder run --mode mistakes`).

The clean step is the article's ladder at `data_loading`, without CUDA graphs: a captured step hides what the CPU does.
A mistake is a change of its recipe, or a patch of `ladder.studies.mistakes`. The model's package holds none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ladder.base.plain import Fields
from ladder.plan import catalog
from ladder.plan.catalog import Planned
from ladder.plan.variants import Variant

STUDY = "mistakes"
TITLE = "Common mistakes, each beside the clean step"
CLEAN = "clean"
LAST, LEFT_OUT = "data_loading", "cuda_graphs"
# Each visit first drains what idle workers hold: so many steps for each worker.
QUEUE: Fields = {"prefetch_factor": 1}


@dataclass(frozen=True)
class Mistake:
    """One mistake. ``why`` ends a sentence that says how much slower the step is."""

    name: str
    title: str
    why: str
    change: Fields = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    exempt: str | None = None
    updates: int = 1


ANOTHER = "more updates of D for each of G are another training"
CRITIC = "an update of G comes with {} updates of D, each on images of its own"
MISTAKES = (
    Mistake(
        "item_each_step",
        "a loss read with .item() each step",
        "to read a loss the CPU waits for the GPU, which then waits for the next launches",
    ),
    Mistake(
        "latents_in_loop",
        "latents and noise allocated in the loop",
        "each tensor of random numbers is allocated and drawn by itself, instead of all in one buffer",
    ),
    Mistake(
        "nchw_left_in",
        "NCHW left in: .contiguous() in each block",
        "each block's result is copied to NCHW, and the next convolution copies it back",
    ),
    Mistake(
        "fp16_unmonitored",
        "FP16 without loss scale and check",
        "no loss is scaled and no number checked, so lost gradients and NaN stay unseen",
        {"precision": "fp16"},
        ("cuda",),
        exempt="without a loss scale gradients vanish or overflow",
    ),
    Mistake(
        "g_not_frozen",
        "G not frozen in D's update",
        "backward goes on through G, and nobody uses the gradients of its weights",
    ),
    Mistake(
        "g_graph_kept",
        "G's graph kept in D's update",
        "G records a graph and keeps its activations, which nobody uses",
    ),
    Mistake(
        "zero_grad_fills",
        "zero_grad() with fills",
        "each gradient is filled with zeros, then read and added to",
        {"set_to_none": False},
    ),
    Mistake(
        "blocking_copies",
        "blocking copies",
        "a copy from ordinary memory blocks the CPU, and none runs beside the step",
        {"pin_memory": False, "async_copy": False},
        ("cuda",),
    ),
    Mistake(
        "too_few_workers",
        "too few workers: none, the default",
        "the training process decodes the images itself, and launches nothing meanwhile",
        {"workers": 0, "persistent_workers": False, "prefetch_factor": None},
        ("cuda",),
    ),
    Mistake(
        "compile_shapes",
        "compile of shape-changing code",
        "every 16th step brings a new shape, which is compiled while the GPU has no work",
        needs=("cuda", "triton"),
    ),
    Mistake(
        "empty_cache",
        "empty_cache() in the loop",
        "the driver gets the free memory back, and the next step must ask for it again",
        needs=("cuda",),
    ),
    Mistake(
        "n_critic_2",
        "n_critic 2",
        CRITIC.format(2),
        exempt=ANOTHER,
        updates=2,
    ),
    Mistake(
        "n_critic_5",
        "n_critic 5",
        CRITIC.format(5),
        exempt=ANOTHER,
        updates=5,
    ),
    Mistake(
        "sync_timing",
        "synchronizing to time each phase",
        "the CPU launches nothing while the GPU works, so the GPU waits after each phase",
        needs=("cuda",),
    ),
)


def names() -> list[str]:
    """Return the names of all entries, in order."""
    return [CLEAN, *(mistake.name for mistake in MISTAKES)]


def plan(
    ladder: catalog.Ladder, capabilities: dict[str, str | None], only: Iterable[str] | None = None
) -> list[Planned]:
    """Return the clean step and each mistake beside it, or those that `only` names.

    Raises:
        UserError: `only` names something else.
    """
    chosen = catalog.chosen(names(), only, "the mistakes")
    recipe = clean(ladder, capabilities)
    made = [Planned(CLEAN, "the clean step (n_critic 1)", recipe, None, None)]
    for mistake in MISTAKES:
        if mistake.name in chosen:
            lacks = catalog.missing(mistake.needs, capabilities)
            variant = Variant(STUDY, mistake.why, mistake.exempt, updates=mistake.updates)
            changed = None if lacks else {**recipe, **mistake.change}
            made.append(Planned(mistake.name, mistake.title, changed, lacks, None, variant))
    return made


def clean(ladder: catalog.Ladder, capabilities: dict[str, str | None]) -> Fields:
    """Return the recipe of the clean step: every rung up to `data_loading` that runs here, but for CUDA graphs."""
    recipe: Fields = {}
    for rung in catalog.climb(ladder, capabilities):
        if rung.recipe is not None and rung.name != LEFT_OUT:
            recipe |= catalog.load_rung(rung.name).change
        if rung.name == LAST:
            break
    return recipe | QUEUE if recipe.get("workers") else recipe
