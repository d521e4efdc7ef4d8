"""The table of presets in the documentation is that of the code, and the chosen optimisers follow from the tuning."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedforget.experiments.presets import PRESETS, Preset, described

DOCUMENT = Path(__file__).parents[2] / "docs" / "data.md"


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def table(start: str) -> list[list[str]]:
    """The lines of the table whose header begins so, without header and rule."""
    text = DOCUMENT.read_text(encoding="utf-8")
    lines = text[text.index(start) :].split("\n\n")[0].splitlines()
    return [cells(line) for line in (lines[0], *lines[2:])]


def words(preset: Preset) -> str:
    own = f"; FedAvg and FRS {described(preset.tuned_for_fedavg)}" if preset.tuned_fedavg else ""
    return described(preset.tuned) + own


def test_documented_presets_are_those_of_the_code() -> None:
    documented = {line[0]: line[6:] for line in table("| preset | M | K |")[1:]}
    assert documented == {
        f"`{preset.name}`": [described(preset.printed), described(preset.authors), words(preset)]
        for preset in PRESETS.values()
    }


TUNING = table("| dataset | method | lr 0.03 |")
SETTINGS = TUNING[0][2:]


@pytest.mark.parametrize("line", TUNING[1:], ids=lambda line: f"{line[0].strip('`')} {line[1]}")
def test_tuned_optimisers_are_the_best_of_the_documented_grid(line: list[str]) -> None:
    means = [float(re.findall(r"[0-9.]+", cell)[0]) for cell in line[2:]]
    preset = PRESETS[line[0].strip("`")]
    chosen = described(preset.tuned if line[1] == "FATS" else preset.tuned_for_fedavg)
    assert SETTINGS[means.index(max(means))] == chosen
    assert line[2 + means.index(max(means))].startswith("**")
