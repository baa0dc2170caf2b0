"""NVIDIA's networks to checkpoints and back: bit for bit, the same function, and what is refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ladder.core.errors import UserError
from ladder.training import checkpoint
from ladder.training.nvidia import names
from ladder.training.nvidia.convert import WHOLE, convert_file
from stylegan_lite import Recipe, Workload, make_step
from stylegan_lite.networks import Discriminator, Generator
from tests.support import nvidia_networks as theirs
from tests.support.commands import succeed
from tests.support.small import LEAST

NETWORKS = ("G", "D", "G_ema")
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return theirs.write(tmp_path_factory.mktemp("nvidia") / "network.pkl", theirs.networks())


@pytest.fixture(scope="module")
def converted(source: Path) -> Path:
    succeed("convert", source, source.with_name("ours.pt"))
    return source.with_name("ours.pt")


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    alike = (torch.equal(one[name], other[name]) and one[name].dtype == other[name].dtype for name in one)
    return one.keys() == other.keys() and all(alike)


def test_the_workload_is_that_of_the_networks(converted: Path) -> None:
    workload = Workload.from_dict(checkpoint.load_checkpoint(converted)["workload"])
    assert workload == Workload(
        resolution=16, channel_base=64, channel_max=8, batch=8, z_dim=6, w_dim=5, mapping_layers=2,
        conv_clamp=0.8, mbstd_group=4, w_avg_beta=0.995,
    )  # fmt: skip


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_there_and_back_is_bit_for_bit(protocol: int, tmp_path: Path) -> None:
    made = theirs.networks(seed=protocol)
    theirs.write(tmp_path / "a.pkl", made, protocol)
    for step in ("a.pkl b.pt", "b.pt c.pt", "c.pt d.pt", "d.pt e.pt"):  # pickle, ours, theirs, ours, theirs
        succeed("convert", *(tmp_path / name for name in step.split()))
    for name in ("c.pt", "e.pt"):
        back = torch.load(tmp_path / name, weights_only=True)
        for label in NETWORKS:
            assert same(back[label], made[label].state_dict())
    assert back["kwargs"]["D"] == {
        "c_dim": 0, "img_resolution": 16, "img_channels": 3, "channel_base": 64, "channel_max": 8,
        "conv_clamp": pytest.approx(0.8), "num_fp16_res": 4, "epilogue_kwargs": {"mbstd_group_size": 4},
    }  # fmt: skip
    assert back["kwargs"]["G"]["mapping_kwargs"] == {"num_layers": 2, "w_avg_beta": 0.995}
    one, other = (checkpoint.load_checkpoint(tmp_path / name) for name in ("b.pt", "d.pt"))
    assert one["workload"] == other["workload"]
    assert all(same(one["state"][label], other["state"][label]) for label in NETWORKS)  # type: ignore[literal-required]


def test_both_networks_compute_the_same_in_fp64(converted: Path) -> None:
    content = checkpoint.load_checkpoint(converted)
    workload, made = Workload.from_dict(content["workload"]), theirs.networks()
    G, D = Generator(workload, Recipe()).double(), Discriminator(workload, Recipe()).double()
    G.load_state_dict(content["state"]["G_ema"])
    D.load_state_dict(content["state"]["D"])
    g, d = ({k: v.double() for k, v in made[label].state_dict().items()} for label in ("G_ema", "D"))
    z, x = torch.randn(3, 6).double(), torch.randn(8, 3, 16, 16).double()
    torch.testing.assert_close(G.mapping(z), theirs.mapped(g, z, 2), rtol=1e-10, atol=1e-12)
    ws = torch.randn(1, G.num_ws, 5).double()
    noise = [each.double() for each in names.list_noise(content["kept"]["G_ema"], workload)]
    image = theirs.image(g, ws[0], workload.resolutions, 0.8)
    torch.testing.assert_close(G(ws, noise), image, rtol=1e-10, atol=1e-12)
    assert image.abs().max() > 0.8
    judged = theirs.logits(d, x, workload.resolutions, 0.8, 4)
    torch.testing.assert_close(D(x), judged, rtol=1e-10, atol=1e-12)
    free = theirs.logits(d, x, workload.resolutions, None, 4)
    assert not torch.allclose(judged, free)  # the bound matters here


@pytest.mark.parametrize(
    "channels, fields",
    [
        ({4: 8, 8: 8}, (64, 8)),  # the bound everywhere
        ({4: 12, 8: 6}, (48, 12)),
        ({4: 12, 8: 12, 16: 6, 32: 3}, (100, 12)),  # 100 // 16 = 6, 100 // 32 = 3
        ({4: 13, 8: 6}, (52, 13)),  # 6 * 8 is less than 13 * 4
    ],
)
def test_channels_are_found_by_shapes_alone(channels: dict, fields: tuple, tmp_path: Path) -> None:
    made = theirs.networks(channels=channels)
    found = convert_file(theirs.write(tmp_path / "a.pkl", made)).workload
    assert [found.fmaps(r) for r in channels] == [*channels.values()]
    assert (found.channel_base // max(channels), found.channel_max) == (fields[0] // max(channels), fields[1])


def test_state_dicts_of_a_wrapped_network_are_read(converted: Path, tmp_path: Path) -> None:
    """DistributedDataParallel puts "module." before each name."""
    succeed("convert", converted, tmp_path / "states.pt")
    states = torch.load(tmp_path / "states.pt", weights_only=True)
    wrapped = {label: {f"module.{key}": each for key, each in states[label].items()} for label in NETWORKS}
    torch.save(states | wrapped, tmp_path / "wrapped.pt")
    for name in ("states", "wrapped"):
        succeed("convert", tmp_path / f"{name}.pt", tmp_path / f"{name}-ours.pt")
    one, other = (checkpoint.load_checkpoint(tmp_path / f"{name}-ours.pt") for name in ("states", "wrapped"))
    assert one["workload"] == other["workload"]
    assert same(one["kept"]["G_ema"], other["kept"]["G_ema"])


@pytest.mark.parametrize("kind", ["pickle", "states"])
def test_an_averaged_generator_alone_draws_the_same_images(
    kind: str, source: Path, converted: Path, tmp_path: Path
) -> None:
    """A file that people pass on often has no more. What is missing begins anew, and a note says so."""
    alone = tmp_path / "alone.pkl"
    if kind == "pickle":
        theirs.write(alone, {"G_ema": theirs.networks()["G_ema"]})
    else:
        succeed("convert", converted, alone)
        states = torch.load(alone, weights_only=True)
        torch.save({key: states[key] for key in ("G_ema", "kwargs")}, alone)
    said = succeed("convert", alone, tmp_path / "ours.pt").output
    assert "no G in the file: it begins as G_ema" in said and "no D in the file" in said
    whole, part = (checkpoint.load_checkpoint(path) for path in (converted, tmp_path / "ours.pt"))
    assert same(whole["state"]["G_ema"], part["state"]["G"]) and part["workload"] == whole["workload"]
    for path in (converted, tmp_path / "ours.pt"):
        succeed("sample", path, "--seeds", "0-1", "--device", "cpu", "--out", tmp_path / path.parent.name)
    drawn = [
        (tmp_path / path.parent.name / "seed0001.png").read_bytes()
        for path in (converted, tmp_path / "ours.pt")
    ]
    assert drawn[0] == drawn[1]
    step = make_step(part["workload"], {}, device="cpu")
    step.D.load_state_dict(part["state"]["D"])  # a training can begin from it


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"<!DOCTYPE html><html>", "a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"\x1f\x8b\x08\x00rest", "unpack it first"),
    ],
)
def test_what_was_downloaded_in_place_of_a_network_is_named(
    content: bytes, problem: str, tmp_path: Path
) -> None:
    (tmp_path / "network.pkl").write_bytes(content)
    with pytest.raises(UserError, match=problem):
        convert_file(tmp_path / "network.pkl")


def test_a_model_that_was_never_nvidias_gets_its_buffers(tmp_path: Path) -> None:
    made = convert_file(_own(tmp_path / "own.pt", LEAST))
    assert made.notes == ("noise_const is new: this model was never NVIDIA's",) and not made.is_checkpoint
    workload = Workload.from_dict(LEAST)
    channels = {r: workload.fmaps(r) for r in workload.resolutions}
    size = {"z": workload.z_dim, "w": workload.w_dim, "layers": workload.mapping_layers}
    expected = theirs.networks(channels=channels, **size)
    for label in NETWORKS:
        shapes = {name: each.shape for name, each in expected[label].state_dict().items()}
        assert {name: each.shape for name, each in made.content[label].items()} == shapes
    assert torch.equal(made.content["D"]["b8.resample_filter"], theirs.FILTER)
    assert (
        made.content["kwargs"]["G"]["num_fp16_res"] == 0 and made.content["kwargs"]["G"]["conv_clamp"] is None
    )


def _own(path: Path, workload: dict[str, Any]) -> Path:
    step = make_step(workload, {}, device="cpu")
    images: checkpoint.Images = {"source": "user-images", "count": 9}
    checkpoint.write_checkpoint(path, checkpoint.make_content(step, seed=0, seconds=0.0, images=images))
    return path


def _change(path: str, **attributes: Any) -> Callable[[dict], None]:
    label, _, name = path.partition(".")
    return lambda made: (made[label][name] if name else made[label]).attributes.update(attributes)


def _tensor(path: str, value: Tensor | None) -> Callable[[dict], None]:
    label, _, name = path.partition(".")
    name, _, key = name.rpartition(".")

    def change(made: dict) -> None:
        module = made[label][name] if name else made[label]
        holder = module.buffers if key in module.buffers else module.parameters
        holder.pop(key, None)
        if value is not None:
            holder[key] = value

    return change


REFUSED = [
    (_change("G", c_dim=10), r"G: conditional on labels: c_dim must be 0, and is 10"),
    (_change("D", img_channels=1), r"D: img_channels must be 3, and is 1"),
    (_change("D.b8", architecture="orig"), r"D\.b8: architecture must be 'resnet', and is 'orig'"),
    (_change("G.synthesis.b8", architecture="resnet"), r"b8: architecture must be 'skip', and is 'resnet'"),
    (_change("G.synthesis.b8.conv0", activation="relu"), r"conv0: activation must be 'lrelu', and is 'relu'"),
    (_change("G.mapping.fc1", bias_gain=0.1), r"G\.mapping\.fc1: bias_gain must be 0\.01, and is 0\.1"),
    (_change("G.synthesis.b8.conv0", conv_clamp=9.0), r"conv_clamp differs between layers: 0\.8, 9\.0"),
    (_change("G.synthesis.b8.conv0", conv_clamp=[]), r"damaged: conv_clamp is no number or text"),
    (_change("D.b4.mbstd", group_size="4"), r"mbstd_group must be an integer, got '4'"),
    (_change("D.b4.mbstd", group_size=0), r"mbstd_group must be at least 1, got 0"),
    (_change("D.b4.mbstd", num_channels=2), r"D\.b4\.mbstd: num_channels must be 1, and is 2"),
    (_tensor("D.b8.conv0.resample_filter", torch.ones(4, 4)), r"D\.b8\.conv0\.resample_filter: another filter"),
    (_tensor("D.b8.conv0.bias", None), r"D: another architecture .*: it has no b8\.conv0\.bias"),
    (_tensor("D.b8.conv0.more", torch.ones(1)), r"D: another architecture .*: it has b8\.conv0\.more"),
    (_tensor("D.b8.conv0.bias", torch.ones(8).half()), r"\[8\] float32 is expected, not \[8\] float16"),
    (_tensor("G_ema.mapping.fc0.weight", torch.ones(5, 9)), r"G_ema\.mapping\.fc0\.weight: \[5, 6\] float32 is"),
    (lambda made: made.pop("G_ema"), r"has no G_ema, the averaged generator; there are: G, D, augment_pipe"),
    (lambda made: made.update(D=None), r"D is no network"),
    (
        lambda made: made["G"]["synthesis"].modules.update(input=theirs.Module("SynthesisInput", {})),
        r"G\.synthesis\.input: another architecture than --cfg=stylegan2: it is a SynthesisInput",
    ),
]  # fmt: skip


@pytest.mark.parametrize("change, says", REFUSED, ids=[says[:24] for _, says in REFUSED])
def test_another_architecture_is_one_line_and_no_file(
    change: Callable[[dict], None], says: str, tmp_path: Path
) -> None:
    made = theirs.networks()
    change(made)
    with pytest.raises(UserError, match=says) as error:
        convert_file(theirs.write(tmp_path / "a.pkl", made))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("group, ours, batch", [(None, WHOLE, 8), (3, 3, 9), (32, 32, 32)])
def test_groups_of_the_minibatch_deviation(group: int | None, ours: int, batch: int, tmp_path: Path) -> None:
    """Without a group NVIDIA's layer takes the whole batch, as old networks do that its legacy.py converted."""
    checkpoint.write_checkpoint(
        tmp_path / "a.pt",
        convert_file(theirs.write(tmp_path / "a.pkl", theirs.networks(group=group))).content,
    )
    back = convert_file(tmp_path / "a.pt")
    assert (back.workload.mbstd_group, back.workload.batch) == (ours, batch)
    assert back.content["kwargs"]["D"]["epilogue_kwargs"] == {"mbstd_group_size": group}
    checkpoint.write_checkpoint(tmp_path / "b.pt", back.content)
    assert convert_file(tmp_path / "b.pt").workload == back.workload
