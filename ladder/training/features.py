"""Features of 32x32 images for distances: the last hidden layer of a small classifier of Fashion-MNIST.

``features.pt`` has the weights in FP16, and ``features.json`` how they were made and what they reach. They are made by

    python -m ladder.training.features FOLDER [--seed 0] [--epochs 12]

where FOLDER has the four idx files of Fashion-MNIST, such as those of Debian's package dataset-fashion-mnist.
"""

from __future__ import annotations

import functools
import itertools
import json
from pathlib import Path

import click
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ladder.core.paths import ROOT
from ladder.images import idx

SIDE = 32
WIDTH = 64  # features of an image
WEIGHTS = Path(__file__).with_name("features.pt")
BATCH, RATE = 128, 3e-3


class Classifier(nn.Module):
    """Four convolutions, the first three with stride 2, the means of four quarters, a hidden layer and ten classes."""

    def __init__(self) -> None:
        super().__init__()
        widths = (1, 32, 64, 96)
        layers: list[nn.Module] = []
        for i, o in itertools.pairwise(widths):
            layers += [nn.Conv2d(i, o, 3, 2, 1), nn.ReLU()]
        self.body = nn.Sequential(
            *layers, nn.Conv2d(96, 96, 3, 1, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
        )
        self.hidden = nn.Linear(4 * 96, WIDTH)
        self.classes = nn.Linear(WIDTH, 10)

    def extract(self, images: Tensor) -> Tensor:
        """Return the features [N, 64] of grey images [N, 1, 32, 32] in [-1, 1]."""
        return F.relu(self.hidden(self.body(images)))

    def forward(self, images: Tensor) -> Tensor:
        return self.classes(self.extract(images))  # type: ignore[no-any-return]


@functools.cache
def load_classifier(device: str) -> Classifier:
    """Return the committed classifier in FP64, so that a rung's settings of TF32 have no part in a distance."""
    network = Classifier()
    network.load_state_dict(torch.load(WEIGHTS, map_location="cpu", weights_only=True))
    return network.to(device, torch.float64).eval().requires_grad_(False)


def extract_features(images: Tensor) -> Tensor:
    """Return the features [N, 64], FP64, of images [N, C, 32, 32] in [-1, 1]; colours are averaged."""
    network = load_classifier(str(images.device))
    return torch.cat([network.extract(part) for part in images.double().mean(1, keepdim=True).split(500)])


def train_classifier(folder: Path, seed: int, epochs: int) -> tuple[Classifier, float]:
    """Return a classifier trained on a folder's images, and its accuracy on the test images.

    Adam with one cosine cycle; random flips and shifts by up to two pixels.
    """
    torch.manual_seed(seed)
    images, labels = read_split(folder, "train")
    network = Classifier()
    steps = epochs * (len(images) // BATCH)
    optimizer = torch.optim.Adam(network.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for epoch in range(epochs):
        for part in torch.randperm(len(images)).split(BATCH)[: len(images) // BATCH]:
            x = images[part]
            x = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(3), x)
            down, right = torch.randint(-2, 3, (2,)).tolist()
            loss = F.cross_entropy(network(x.roll((down, right), (2, 3))), labels[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        click.echo(
            f"epoch {epoch + 1} of {epochs}: accuracy {measure_accuracy(network, folder):.4f}", err=True
        )
    for value in network.parameters():  # as they are stored
        value.data = value.data.half().float()
    return network, measure_accuracy(network, folder)


def read_split(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    """Return the images [N, 1, 32, 32] in [-1, 1] and labels [N] of a split, "train" or "t10k"."""
    pixels = torch.from_numpy(idx.read_images(idx.find_file(folder, f"{split}-images-idx3-ubyte")))
    labels = torch.from_numpy(idx.read_array(idx.find_file(folder, f"{split}-labels-idx1-ubyte")))
    return pixels.unsqueeze(1).float() / 127.5 - 1, labels.long()


@torch.no_grad()
def measure_accuracy(network: Classifier, folder: Path) -> float:
    """Return the fraction of the test images that a classifier names."""
    images, labels = read_split(folder, "t10k")
    kind = next(network.parameters()).dtype
    answers = torch.cat([network(part.to(kind)).argmax(1) for part in images.split(500)])
    return float((answers == labels).double().mean())


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--seed", default=0)
@click.option("--epochs", default=12)
def main(folder: Path, seed: int, epochs: int) -> None:
    """Train the classifier on FOLDER's four files and write its weights and how they were made."""
    network, accuracy = train_classifier(folder, seed, epochs)
    torch.save({name: value.half() for name, value in network.state_dict().items()}, WEIGHTS)
    recipe = {
        "images": "Fashion-MNIST, 60,000 for training and 10,000 for testing, padded from 28x28 to 32x32",
        "seed": seed, "epochs": epochs, "batch": BATCH, "optimizer": "Adam", "learning_rate": RATE,
        "schedule": "one cosine cycle", "augmentation": "horizontal flips, shifts of up to 2 pixels",
        "accuracy": round(accuracy, 4), "torch": torch.__version__.split("+")[0],
        "parameters": sum(value.numel() for value in network.parameters()),
    }  # fmt: skip
    WEIGHTS.with_suffix(".json").write_text(json.dumps(recipe, indent=1) + "\n")
    click.echo(f"{WEIGHTS.relative_to(ROOT)}: accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
