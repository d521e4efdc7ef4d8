"""Published curves come with FedForget or from the caller's file, and are drawn behind ours where they compare."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedforget.errors import InvalidInput
from fedforget.experiments import efficiency
from fedforget.experiments.cells import Choice
from fedforget.experiments.draw_times import draw_efficiency
from fedforget.experiments.published import VARIABLE, Published
from fedforget.experiments.rows import COLUMNS

TEXT = (
    "figure,line,x_name,x,y_name,y\n"
    "6b Shakespeare client,FATS M=390,K,2,steps,500\n"
    "6b Shakespeare client,FATS M=390,K,4,steps,900\n"
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "published.csv"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_a_curve_is_found_by_panel_line_and_quantity(file: Path) -> None:
    published = Published(file)
    assert published.curve("6b", "FATS M=390", "steps") == [(2.0, 500.0), (4.0, 900.0)]
    assert published.curve("6a", "FATS M=390", "steps") == []
    assert published.curve(None, "FATS M=390", "steps") == []
    assert published.has("6b")
    assert not published.has("5a")


def test_the_environment_names_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(file))
    assert Published.found(None).curve("6b", "FATS M=390", "steps") == [(2.0, 500.0), (4.0, 900.0)]
    assert not Published.found(None).has("5a")


def test_without_a_file_the_curves_of_figures_5_to_8_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    published = Published.found(None)
    assert all(published.has(panel) for panel in ("5a", "5f", "6a", "6b", "7a", "7b", "8a", "8d"))
    assert len(published.curve("5a", "FATS", "accuracy")) == 51
    assert all(0 <= accuracy <= 1 for accuracy in published.values("8a", "accuracy"))


@pytest.mark.parametrize("text", ["figure,line\n6a,FATS\n", TEXT + "6b x,FATS,K,two,steps,1\n", "\x00"])
def test_a_file_of_another_kind_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text(text, encoding="utf-8")
    if text == "\x00":
        assert not Published(path).has("6b")
        return
    with pytest.raises(InvalidInput, match="not a file of published curves"):
        Published(path)


def test_the_figure_differs_only_if_there_is_a_published_curve(file: Path, tmp_path: Path) -> None:
    cells = [cell for cell in efficiency.cells(Choice("smoke", 1, ("shakespeare",))) if "client R=50" in cell.name]
    rows = [{**dict.fromkeys(COLUMNS), **row} for cell in cells for row in cell.compute()]
    drawn = []
    for published in (Published(), Published(), Published(file)):
        draw_efficiency(rows, tmp_path, published)
        drawn.append((tmp_path / "efficiency-shakespeare-R50.svg").read_bytes())
    assert drawn[0] == drawn[1] != drawn[2]
