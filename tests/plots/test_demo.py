"""The demonstration's picture sets the steps of forgetting beside those of retraining after each request."""

from __future__ import annotations

import re
from pathlib import Path

from fedforget.demo.comparison import Comparison, Erasure
from fedforget.demo.plot import draw_comparison


def chapter(recomputed: int) -> Erasure:
    return Erasure("a sample", ["sample 1"], None, recomputed, 0.5, 50.0, 0.9, 0.8, "path", [(200 - recomputed, 0.7)])


def test_demo_plot_shows_the_steps_of_retraining(tmp_path: Path) -> None:
    curve = [(0, 0.1), (200, 0.9)]
    story = Comparison(200, curve, [chapter(steps) for steps in (0, 105, 45, 80)], curve, "m", "m", "s", "s")
    draw_comparison(tmp_path / "demo.svg", story)
    shown = re.findall(r"<!-- (\d+) steps -->", (tmp_path / "demo.svg").read_text(encoding="utf-8"))
    assert shown == ["230", "800"]
