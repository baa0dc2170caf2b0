"""A small training at the top of the ladder on your own images, to copy and change.

    python examples/train_mine.py photos runs/photos --steps 11500

OUT gets `checkpoint.pt`, sample grids, and `G_ema.pt`, the averaged generator as a plain state dict. The same command
goes on from the checkpoint. Ctrl-C writes it after the step in progress. `docs/training.md` explains the calls.
"""

import argparse
import sys
import time
from contextlib import closing
from pathlib import Path

from ladder.core.errors import UserError
from ladder.core.files import replace_file
from ladder.core.stopping import stop_between
from ladder.images.for_workload import DEFAULT_WORKLOAD, prepare_images
from ladder.machine import system
from ladder.plan import catalog, needs
from stylegan_lite import ConfigError, make_step

EVERY = 500  # steps between checkpoints


def train(folder: str, out: Path, steps: int, preset: str | None) -> int:
    """Train up to step `steps`, from the checkpoint in `out` if there is one, and return the exit status."""
    device = system.choose_device()
    _, workload = catalog.load_workload(preset or DEFAULT_WORKLOAD[device])
    able = needs.join_capabilities(system.list_capabilities(device), workload)
    rungs = catalog.plan_climb(catalog.load_ladder("full"), able)
    recipe = [rung.recipe for rung in rungs if rung.recipe is not None][-1]  # the highest that runs here
    images = prepare_images(folder, workload, quiet=False)  # cropped and resized once, kept in a cache
    out.mkdir(parents=True, exist_ok=True)
    import torch  # takes seconds, so bad arguments are refused before

    from ladder.training import checkpoint, grid

    path, seen = out / "checkpoint.pt", checkpoint.Images(source=images.source, count=images.count)
    if saved := checkpoint.load_checkpoint(path) if path.exists() else None:
        checkpoint.refuse_other(path, saved, workload, seen, device)
    seed = saved["seed"] if saved else 0
    step = make_step({**workload, "data": images.path}, recipe, device=device, seed=seed)
    started = time.perf_counter() - (saved["seconds"] if saved else 0.0)

    def save() -> None:
        if bad := step.check_finite():  # waits for the GPU
            sys.exit(f"train_mine: {bad}; the checkpoint before it is kept")
        seconds = time.perf_counter() - started
        content = checkpoint.make_content(step, seed=seed, images=seen, seconds=seconds)
        checkpoint.write_checkpoint(path, content)
        grid.write_samples(step, out / f"samples-{step.count:06d}.png", seed=seed)
        print(f"step {step.count}, {seconds:.0f} s: {step.losses()}", flush=True)

    with closing(step), stop_between() as stopped:  # Ctrl-C and SIGTERM end the loop between two steps
        step.prepare()  # compiles kernels and captures the CUDA graphs; the weights stay as they were
        if saved:
            checkpoint.restore_step(path, saved, step)  # in place: graphs keep their addresses
        while step.count < steps and not stopped():
            step.step()  # only launches work: nothing here reads a value from the GPU
            if step.count % EVERY == 0 and step.count < steps:
                save()
        save()
        with replace_file(out / "G_ema.pt") as temporary:
            torch.save({k: v.cpu() for k, v in step.averages["G"].state_dict().items()}, temporary)
        return 130 if step.count < steps else 0


if __name__ == "__main__":  # not in the data loader's workers, which import this file
    parser = argparse.ArgumentParser(description="Train on a folder of images at the top of the ladder.")
    parser.add_argument("folder", help="A folder or zip of JPEG and PNG files of any size.")
    parser.add_argument("out", type=Path, help="The folder of checkpoint, samples and exported weights.")
    parser.add_argument("--steps", type=int, default=11_500, help="The step to train up to.")
    parser.add_argument("--workload", dest="preset", help="A preset or YAML file. [GPU: article, CPU: tiny]")
    try:
        sys.exit(train(**vars(parser.parse_args())))
    except (UserError, ConfigError, OSError) as error:
        print(f"train_mine: {str(error).removeprefix('--data ')}", file=sys.stderr)
        sys.exit(2)
