"""Shared parts of all plots: colours, fonts, and reproducible files.

matplotlib is imported only when a plot is drawn, because importing it is slow.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedforget.errors import InvalidInput, StorageFailed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
BLUE, GREY, RED, INK, FAINT = "#0b69a3", "#7b8794", "#ba2525", "#1f2933", "#e4e7eb"
_STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.fonttype": "path",
    "svg.hashsalt": "fedforget",
}


def check_format(path: Path) -> None:
    """Refuse a path where no plot can be written. Commands call this before they start to work."""
    if path.suffix.lower() not in FORMATS:
        raise InvalidInput(f"cannot draw into {path}", hint=f"give a file that ends in {', '.join(FORMATS)}")
    try:
        if path.exists() and not path.is_file():
            raise InvalidInput(f"{path} is not a regular file", hint="give the name of a file, new or to be replaced")
        if not path.parent.is_dir():
            raise InvalidInput(f"there is no directory {path.parent}", hint="create it first, or choose another path")
    except OSError as error:
        raise StorageFailed(f"cannot write {path}: {error.strerror}", hint="check the path of --plot") from error


def save_picture(path: Path, draw: Callable[[], Figure]) -> None:
    """Draw a figure in our style and save it."""
    check_format(path)
    import matplotlib as mpl  # noqa: PLC0415 (see above)

    omitted = {".svg": {"Date": None, "Creator": None}, ".pdf": {"CreationDate": None}}  # for reproducible files
    with mpl.rc_context(_STYLE):
        figure = draw()
        try:
            figure.savefig(path, dpi=160, metadata=omitted.get(path.suffix.lower(), {}))
        except OSError as error:
            raise StorageFailed(f"cannot write {path}: {error.strerror}", hint="check the path of --plot") from error
