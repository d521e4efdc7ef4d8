"""The models that come with FedForget: their tensors, their gradients, and weights from a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from fedforget.data.registry import DATASETS
from fedforget.errors import InvalidInput, PlanRefused
from fedforget.training.models import build_model, structure_of_settings
from fedforget.training.pretrained import load_pretrained

SEED = bytes(range(32))
SMALL_VGG = {"name": "vgg16", "hidden": 8, "classes": 10}
SMALL_LSTM = {"name": "lstm", "letters": 80, "embedding": 4, "hidden": 6}


def example(name: str) -> torch.Tensor:
    if name == "shakespeare":
        return torch.arange(3 * 80).reshape(3, 80).remainder(80).to(torch.uint8)
    return torch.zeros(3, 3, 32, 32) if name.startswith("cifar") else torch.zeros(3, 1, 28, 28)


@pytest.mark.parametrize(
    ("name", "parameters", "classes"),
    [
        ("mnist", 6_497_162, 10), ("femnist", 6_603_710, 62), ("cifar-10", 14_982_474, 10),
        ("cifar-100", 15_028_644, 100), ("shakespeare", 819_920, 80),
    ],
)  # fmt: skip
def test_each_dataset_has_its_model(name: str, parameters: int, classes: int) -> None:
    for place, settings in enumerate(DATASETS[name].models):
        model = build_model(settings, SEED)
        assert model(example(name)).shape == (3, classes)
        if place == 0:
            assert sum(each.numel() for each in model.parameters()) == parameters


def test_leafs_cnn_has_its_layers() -> None:
    """Two 5×5 convolutions of 32 and 64 with 2×2 pooling, dense 2048."""
    structure = structure_of_settings(DATASETS["mnist"].models[0])
    assert [kind.removeprefix("parameter float32 ") for name, kind in structure.items() if name.endswith("weight")] == [
        "32x1x5x5", "64x32x5x5", "2048x3136", "10x2048",
    ]  # fmt: skip


def test_vgg16_has_torchvisions_names_without_batch_norm() -> None:
    """The places of torchvision's thirteen convolutions among the features."""
    structure = structure_of_settings(DATASETS["cifar-10"].models[0])
    places = [0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28]
    expected = {f"features.{place}.{part}" for place in places for part in ("weight", "bias")}
    assert {name for name in structure if name.startswith("features.")} == expected
    assert structure["features.28.weight"] == "parameter float32 512x512x3x3"


def test_lstm_has_two_layers_of_256_on_an_embedding_of_8() -> None:
    structure = structure_of_settings(DATASETS["shakespeare"].models[0])
    assert structure["embedding.weight"].endswith("80x8")
    assert structure["lstm.weight_hh_l1"].endswith("1024x256")
    assert structure["output.weight"].endswith("80x256")
    assert "lstm.weight_hh_l2" not in structure


def test_lstm_begins_every_window_from_zero() -> None:
    """A score depends on its own window only: no state is carried from batch to batch."""
    model, x = build_model(SMALL_LSTM, SEED), example("shakespeare")
    with torch.no_grad():
        first = model(x)
        model(x.flip(0))
        assert torch.equal(model(x), first)
        assert torch.allclose(model(x[1:2]), first[1:2], atol=1e-6)


def test_initial_weights_are_a_function_of_the_seed() -> None:
    for settings in (SMALL_VGG, SMALL_LSTM):
        first, again, other = (build_model(settings, seed).state_dict() for seed in (SEED, SEED, bytes(32)))
        assert all(torch.equal(first[name], again[name]) for name in first)
        assert not all(torch.equal(first[name], other[name]) for name in first)


def test_signal_of_vgg16_does_not_fade_at_the_start() -> None:
    """With PyTorch's own initial weights the last features are below 0.01."""
    model = build_model(SMALL_VGG, SEED)
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features = model.get_submodule("features")
        assert features(x).std() > 0.1
        for layer in features.modules():
            if isinstance(layer, nn.Conv2d):
                torch.manual_seed(1)
                layer.reset_parameters()
        assert features(x).std() < 0.01


@pytest.mark.parametrize(
    "settings", [{"name": "vgg16", "hidden": 8}, {"name": "lstm", "letters": 0}, {"name": "resnet"}]
)
def test_settings_that_make_no_model_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(PlanRefused):
        build_model(settings, SEED)


# Weights from a file


def pretrained(classes: int) -> dict[str, torch.Tensor]:
    """As torchvision has them: the same features, and a head of its own."""
    found = dict(build_model({**SMALL_VGG, "classes": classes}, bytes(32)).state_dict())
    found["classifier.0.weight"] = torch.zeros(7, 7)
    return found


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_weights_fill_all_but_the_head(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"vgg{suffix}"
    weights = pretrained(1000)
    if suffix == ".pt":
        torch.save(weights, path)
    else:
        safetensors.torch.save_file(weights, path)
    model, before = build_model(SMALL_VGG, SEED), build_model(SMALL_VGG, SEED).state_dict()
    digest = load_pretrained(model, path)
    after = model.state_dict()
    assert len(digest) == 32
    for name, tensor in after.items():
        assert torch.equal(tensor, weights[name] if name.startswith("features.") else before[name]) or (
            name == "classifier.0.bias"  # its shape fits the file's
        ), name


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "lstm.pt"
    torch.save(build_model(SMALL_LSTM, SEED).state_dict(), path)
    before = build_model(SMALL_VGG, SEED)
    with pytest.raises(InvalidInput, match=r"features\.0\.weight"):
        load_pretrained(before, path)
    assert torch.equal(
        before.state_dict()["features.0.weight"], build_model(SMALL_VGG, SEED).state_dict()["features.0.weight"]
    )


class Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return Path.mkdir, (self.mark,)


def test_no_code_in_a_file_of_weights_is_run(tmp_path: Path) -> None:
    torch.save({"features.0.weight": Evil(tmp_path / "mark")}, tmp_path / "evil.pt")
    with pytest.raises(InvalidInput, match=r"evil\.pt"):
        load_pretrained(build_model(SMALL_VGG, SEED), tmp_path / "evil.pt")
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("name", ["none.pt", "none.safetensors", "torn.pt", "torn.safetensors", "list.pt"])
def test_weights_that_cannot_be_read_are_named(tmp_path: Path, name: str) -> None:
    if name.startswith("torn"):
        (tmp_path / name).write_bytes(b"PK\3\4 torn")
    if name == "list.pt":
        torch.save([torch.zeros(2)], tmp_path / name)
    with pytest.raises(InvalidInput, match=name):
        load_pretrained(build_model(SMALL_VGG, SEED), tmp_path / name)
