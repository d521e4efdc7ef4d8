"""The built-in models, by name."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from fedforget.errors import PlanRefused
from fedforget.training.identity import structure_of
from fedforget.training.streams import own_streams, start_stream


def mlp(inputs: int, hidden: int, classes: int) -> nn.Module:
    """Return a network with one hidden layer."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def cnn(side: int, channels: int, hidden: int, classes: int) -> nn.Module:
    """Return LEAF's network for square images: two 5×5 convolutions with pooling, then two dense layers."""
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * (side // 4) ** 2, hidden), nn.ReLU(), nn.Linear(hidden, classes),
    )  # fmt: skip


def flat_mlp(inputs: int, hidden: int, classes: int) -> nn.Module:
    """Return a network with one hidden layer, for images."""
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def linear(inputs: int, classes: int) -> nn.Module:
    """Return one dense layer on flattened samples: multinomial logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes))


_VGG16 = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # channels and convolutions of each block


def vgg16(hidden: int, classes: int) -> nn.Module:
    """Return VGG16 without BatchNorm for images of 32×32: torchvision's names for the features, and a small head.

    Five poolings leave one position of 512 channels, so the head needs no 4096 wide layers.
    """
    layers: list[nn.Module] = []
    channels = 3
    for width, convolutions in _VGG16:
        for _ in range(convolutions):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    head = nn.Sequential(nn.Linear(channels, hidden), nn.ReLU(), nn.Linear(hidden, classes))
    for layer in (*layers, *head):
        if isinstance(layer, nn.Conv2d | nn.Linear):  # PyTorch's default start vanishes over 13 layers (tested)
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return nn.Sequential(
        OrderedDict(features=nn.Sequential(*layers), flatten=nn.Flatten(), classifier=head),
    )


class CharacterLstm(nn.Module):
    """LEAF's network for the next character: an embedding, two LSTM layers from a zero state, a score per character."""

    def __init__(self, letters: int, embedding: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(letters, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=2, batch_first=True)
        self.output = nn.Linear(hidden, letters)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(x.int()))
        scores: Tensor = self.output(states[:, -1])
        return scores


MODELS: Mapping[str, tuple[Callable[..., nn.Module], tuple[str, ...]]] = {
    "mlp": (mlp, ("inputs", "hidden", "classes")),
    "cnn": (cnn, ("side", "channels", "hidden", "classes")),
    "flat_mlp": (flat_mlp, ("inputs", "hidden", "classes")),
    "linear": (linear, ("inputs", "classes")),
    "vgg16": (vgg16, ("hidden", "classes")),
    "lstm": (CharacterLstm, ("letters", "embedding", "hidden")),
}


_LARGEST = 2**16  # size of a layer


def build_model(settings: Mapping[str, object], seed: bytes) -> nn.Module:
    """Build the model that a plan names. Its initial weights depend on the seed alone."""
    with own_streams():
        start_stream(seed)
        return _made(settings)


def structure_of_settings(settings: Mapping[str, object]) -> dict[str, str]:
    """Describe the tensors that a model would have, without allocating them."""
    with torch.device("meta"):
        return structure_of(_made(settings))


def parameters_of_settings(settings: Mapping[str, object]) -> int:
    """Return how many numbers a model would have, without allocating them."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in _made(settings).parameters())


def _made(settings: Mapping[str, object]) -> nn.Module:
    name = settings.get("name")
    if name not in MODELS:
        raise PlanRefused(f"unknown model {name!r}", hint=f"the models are: {', '.join(MODELS)}")
    make, keys = MODELS[str(name)]
    missing = [key for key in keys if key not in settings]
    if missing:
        raise PlanRefused(f"the model {name} lacks its {', '.join(missing)}", hint="give whole numbers from 1")
    sizes = [settings[key] for key in keys]
    if not all(isinstance(size, int) and 1 <= size <= _LARGEST for size in sizes):
        raise PlanRefused(f"the model {name} cannot have these sizes", hint=f"give whole numbers from 1 to {_LARGEST}")
    return make(*sizes)
