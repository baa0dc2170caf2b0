"""`ladder convert` beside NVIDIA's own classes. Other tests have stand-ins with the published names and shapes."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ladder.studies.upstream import source
from ladder.studies.upstream.loops import Wide
from ladder.training import checkpoint
from ladder.training.nvidia import names
from stylegan_lite import Recipe, Workload
from stylegan_lite.networks import Discriminator, Generator
from tests.support import nvidia_clone
from tests.support.commands import succeed

CLAMP = 0.8  # so low that it bites
SIZE = {"channel_base": 256, "channel_max": 16, "conv_clamp": CLAMP, "num_fp16_res": 0}
BOTH = {"c_dim": 0, "img_resolution": 16, "img_channels": 3}
LATENT = {"z_dim": 6, "w_dim": 5, "mapping_kwargs": {"num_layers": 2}}
BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-6}  # of the largest magnitude

torch.set_num_threads(1)


def made(networks: object) -> dict[str, nn.Module]:
    """Return NVIDIA's networks with random weights, also where its own begin at zero."""
    of_g = (
        source.pick_accepted(networks.Generator, synthesis_kwargs=SIZE) or SIZE
    )  # stylegan2-ada-pytorch, stylegan3
    found = {label: networks.Generator(**LATENT, **BOTH, **of_g) for label in ("G", "G_ema")}
    found["D"] = networks.Discriminator(**BOTH, **SIZE, epilogue_kwargs={"mbstd_group_size": 4})
    with torch.no_grad():
        for network in found.values():
            network.eval().requires_grad_(False)
            for each in network.parameters():
                each.add_(torch.randn_like(each) / 2)
    return found


def off(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).detach().abs().max() / theirs.abs().max())


@nvidia_clone.needed
def test_converted_networks_compute_what_nvidias_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    with nvidia_clone.imported() as clone:
        theirs = made(clone.networks)
        (tmp_path / "a.pkl").write_bytes(pickle.dumps({**theirs, "augment_pipe": None}))
        succeed("convert", tmp_path / "a.pkl", tmp_path / "b.pt")
        succeed("convert", tmp_path / "b.pt", tmp_path / "c.pt")
        back = torch.load(tmp_path / "c.pt", weights_only=True)
        for label, network in made(clone.networks).items():
            network.load_state_dict(back[label])  # strict
            for name, value in theirs[label].state_dict().items():
                assert torch.equal(value, back[label][name])
        content = checkpoint.load_checkpoint(tmp_path / "b.pt")
        workload = Workload.from_dict(content["workload"])
        z, image = torch.randn(4, 6), torch.randn(8, 3, 16, 16)
        for dtype, bound in BOUNDS.items():
            if dtype is torch.float64:  # NVIDIA's code names float32
                monkeypatch.setattr(clone.networks, "torch", Wide())
            G, D = Generator(workload, Recipe()).to(dtype), Discriminator(workload, Recipe()).to(dtype)
            G.load_state_dict(content["state"]["G_ema"])
            D.load_state_dict(content["state"]["D"])
            for name, each in (
                each for network in theirs.values() for each in network.to(dtype).named_buffers()
            ):
                if name.endswith("resample_filter"):  # must be FP32 there
                    each.data = each.data.float()
            ws = theirs["G_ema"].mapping(z.to(dtype), None)
            noise = [each.to(dtype) for each in names.list_noise(content["kept"]["G_ema"], workload)]
            drawn = theirs["G_ema"].synthesis(ws, noise_mode="const", force_fp32=True)
            assert off(G.mapping(z.to(dtype)), ws[:, 0]) < bound
            assert off(G(ws, noise), drawn) < bound and drawn.dtype is dtype
            assert off(D(image.to(dtype)), theirs["D"](image.to(dtype), None, force_fp32=True)) < bound
