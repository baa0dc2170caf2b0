"""`ladder watch` on small trainings: each planted mistake is found at its line, and their clean twins have none.

A line `BAD  # id: GOOD` is a mistake; the twin has GOOD in its place. An empty id belongs to the mistake above.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
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
net = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)))
average = copy.deepcopy(net)
opt = torch.optim.AdamW(net.parameters(), fused=False)  # : opt = torch.optim.AdamW(net.parameters(), fused=True)
for number in range(60):
    opt.zero_grad(set_to_none=False)  # zeroed_gradients: opt.zero_grad()
    net(torch.randn(4, 256)).mean().backward()
    opt.step()  # unfused_optimizer: opt.step()
    with torch.no_grad():
        for mine, its in zip(average.parameters(), net.parameters()):
            mine.mul_(0.99).add_(its, alpha=0.01)  # parameter_loop: pass
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
