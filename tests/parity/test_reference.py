import dataclasses
import os
import pathlib
import types

import pytest
import torch

from ladder.parity import reference
from ladder.parity.reference import Exact, count_parts, draw_inputs
from ladder.plan import catalog
from stylegan_lite.config import Recipe, Workload
from stylegan_lite.losses import PHASES
from stylegan_lite.stylegan2 import StyleGAN2Step

SMALL = Workload(
    resolution=8, channel_base=64, batch=8, channel_max=8, z_dim=8, w_dim=8, mapping_layers=2, mbstd_group=2
)


def silent(text):
    pass


@pytest.mark.parametrize(("size", "parts"), [(4, 3), (8, 3), (12, 1)])
def test_pieces_are_whole_minibatch_std_groups(size, parts):
    assert count_parts(dataclasses.replace(SMALL, batch=12, mbstd_group=4), size) == parts


@pytest.mark.parametrize("norm", ["demod", "instance"])
def test_gradients_of_pieces_sum_to_those_of_the_batch_and_equal_the_steps_own(norm):
    workload = dataclasses.replace(SMALL, norm=norm)
    state = reference.shared_state(workload, "cpu", 8, silent)
    pieces, whole = Exact(workload, "fp64", "cpu", 2), Exact(workload, "fp64", "cpu", 8)
    inputs = draw_inputs(whole.step, 0)
    own = StyleGAN2Step(workload, Recipe(precision="fp64"), device="cpu", seed=3)
    own.keep_gradients = True
    own.prepare()
    from ladder.parity.reference import inputs_are_ours, load_inputs

    load_inputs(own, inputs)
    for phase in PHASES:
        seen = []
        for one in (pieces, whole):
            reference.adopt_state(one.step, state)
            seen.append(
                reference.observe_phase(one.step, phase, lambda one=one, phase=phase: one.run(phase, inputs))[
                    phase
                ]
            )
        reference.adopt_state(own, state)
        with inputs_are_ours(own):
            seen.append(reference.observe_phase(own, phase, lambda phase=phase: own.run_phase(phase))[phase])
        for quantity, named in seen[0].items():
            for name, value in named.items():
                for other in seen[1:]:
                    torch.testing.assert_close(value, other[quantity][name], rtol=1e-6, atol=1e-12)


def test_the_shared_state_is_alive_everywhere():
    state = reference.shared_state(SMALL, "cpu", 8, silent)
    for net in ("G", "D"):
        for name, value in state[net].items():
            if name.endswith(("bias", "noise_strength")) and "affine" not in name:
                assert value.abs().min() > 0, name
    for name in ("opt_G", "opt_D"):
        for moments in state[name].values():
            assert moments["step"] >= reference.STEPS >= 32
            assert moments["exp_avg_sq"].abs().max() > 0
    assert state["pl_mean"] > 0


def test_it_is_made_once_and_again_when_the_workload_or_the_source_changes(tmp_path, monkeypatch):
    made = []
    inner = reference._make_reference
    monkeypatch.setattr(reference, "_make_reference", lambda w, d, tell: made.append(w) or inner(w, d, tell))
    first, again = (reference.get_reference(SMALL, "cpu", tmp_path) for _ in range(2))
    assert len(made) == 1
    torch.testing.assert_close(first.outcomes, again.outcomes)
    changed = dataclasses.replace(SMALL, mapping_layers=1)
    assert reference.make_key(changed) != reference.make_key(SMALL)
    assert reference.make_key(dataclasses.replace(SMALL, data="elsewhere")) == reference.make_key(SMALL)
    with monkeypatch.context() as patch:
        before = reference.make_key(SMALL)
        patch.setattr(torch.backends.cudnn, "version", lambda: 99999)
        assert reference.make_key(SMALL) != before
    path = tmp_path / "changed.py"
    path.write_text("# changed")
    monkeypatch.setattr(reference, "__file__", str(path))
    assert not (tmp_path / reference.make_key(SMALL)).exists()


def test_an_entry_that_another_run_removes_meanwhile_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setattr(reference, "KEPT", 1)
    for made, name in enumerate(("old", "newest")):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (made, made))
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")  # listed, and not there when it is looked at
    reference._prune_cache(tmp_path / "newest")
    assert (tmp_path / "newest").is_dir() and not (tmp_path / "old").exists()


def test_without_memory_pieces_shrink_then_the_batch_then_the_device(monkeypatch):
    workload = dataclasses.replace(SMALL, mbstd_group=4, batch=16)
    assert reference.list_attempts(workload, "cuda") == [
        ("cuda", 16, 16), ("cuda", 16, 8), ("cuda", 16, 4), ("cuda", 4, 4), ("cpu", 4, 4)
    ]  # fmt: skip
    tried = []

    def short(used, state, device, chunk, tell):
        tried.append((device, used.batch, chunk))
        if device == "cuda":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        return []

    monkeypatch.setattr(reference, "compute_reference", short)
    monkeypatch.setattr(reference, "shared_state", lambda *_: {})
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    made = reference._make_reference(workload, "cuda", silent)
    assert tried == reference.list_attempts(workload, "cuda")
    assert (made.made_on, made.workload.batch) == ("cpu", 4)
    assert len(made.notes) == 4 and "cuda, batch 16, 8 at a time: CUDA out of memory" in made.notes[1]


def test_a_batch_that_would_take_too_long_is_halved_in_whole_groups(monkeypatch):
    workload = dataclasses.replace(SMALL, mbstd_group=4, batch=24)
    least, each = reference.list_attempts, reference.estimate_work(workload)
    for most, batch in ((24, 24), (23, 12), (11, 4), (1, 4)):
        monkeypatch.setattr(reference, "MOST_WORK", most * each)
        assert least(workload, "cpu")[0] == ("cpu", batch, batch)
    monkeypatch.setattr(reference, "shared_state", lambda *_: {})
    monkeypatch.setattr(reference, "compute_reference", lambda *_: [])
    assert reference._make_reference(workload, "cpu", silent).notes == [
        "batch 4 of 24: FP64 of more would take too long"
    ]


def test_only_the_largest_preset_is_compared_at_another_batch():
    for name in catalog.list_workloads():
        workload = Workload.from_dict(catalog.load_workload(name)[1])
        batch = reference.list_attempts(workload, "cuda")[0][1]
        assert batch == {"large": 8}.get(name, workload.batch)


def test_a_reference_of_a_smaller_batch_is_compared_at_that_batch(tmp_path, monkeypatch):
    from ladder.parity import check as parity
    from stylegan_lite import make_step

    workload = dataclasses.replace(SMALL, mbstd_group=4)
    inner = reference.compute_reference

    def short(used, *more):
        if used.batch > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return inner(used, *more)

    monkeypatch.setattr(reference, "compute_reference", short)
    step = make_step(workload.to_dict(), {"channels_last": True}, device="cpu")
    step.keep_gradients = True
    step.prepare()
    found = parity.check_step(step, cache=tmp_path)
    assert found["verdict"] == "ok", found["problems"]
    assert found["reference"]["batch"] == 4 and "out of memory" in found["reference"]["notes"][0]


def test_where_it_would_take_too_much_of_the_gpu_it_stays_on_the_cpu(tmp_path, monkeypatch):
    found = reference.get_reference(SMALL, "cpu", tmp_path)
    assert found.on("cpu") is found
    size = reference._count_bytes({"state": found.state, "outcomes": dict(enumerate(found.outcomes))})
    card = type("Properties", (), {"total_memory": 9 * size})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    assert size > 1000 and found.on("cuda") is found


def test_all_that_is_computed_with_moves_to_the_gpu_and_step_counts_stay(monkeypatch):
    card = types.SimpleNamespace(total_memory=2**40)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    monkeypatch.setattr(torch.Tensor, "to", lambda t, _: torch.empty_like(t, device="meta"))
    single, whole = torch.ones(()), torch.ones(3)
    outcome = {"loss": {"loss": single}, "gradient": {"noise_strength": single, "weight": whole}}
    state = {"opt_G": {0: {"step": single, "exp_avg": whole}}, "betas": {"G": (0.0, 0.99)}}
    held = reference.Reference(SMALL, "cuda", 8, [], state, [{"G_main": outcome}], pathlib.Path())
    moved = held.on("cuda")
    for found in (moved.outcomes[0]["G_main"], reference.move_resident({0: outcome}, "cuda")[0]):
        assert {t.device.type for named in found.values() for t in named.values()} == {"meta"}
    kept = moved.state["opt_G"][0]
    assert kept["step"].device.type == "cpu" and kept["exp_avg"].device.type == "meta"
    assert moved.state["betas"] == {"G": (0.0, 0.99)}
