"""One self-contained HTML page: every figure inlined, every table, settings, seeds and versions."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from fedforget.disk.files import storage_errors, write_durably
from fedforget.errors import InvalidInput
from fedforget.experiments.tables import Table

NAME, SETTINGS = "report.html", "settings.json"
_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;color:#1f2933;max-width:70rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;font-size:.85rem;margin:1rem 0}
th,td{padding:.25rem .6rem;border-bottom:1px solid #e4e7eb}
th{text-align:left}td.n{text-align:right;font-variant-numeric:tabular-nums}img{max-width:100%}
.note{font-size:.85rem;color:#52606d}.wide{overflow-x:auto}h2{margin-top:2.5rem}
"""
_ROWS = ("runs", "seeds", "datasets")  # noted by the first version for its last call only: the rows tell
_RENAMED = {"finished": "last run"}  # as the first version called it
Section = tuple[str, str, Sequence[Table], Sequence[Path]]


def write_report(out: Path, first: Sequence[Table], sections: Sequence[Section], seeds: Table) -> Path:
    """Write ``report.html`` into a results directory: tables that come first, then a section for each experiment."""
    parts = ["<!doctype html><html lang='en'><meta charset='utf-8'><title>FedForget: reproduction</title>",
             f"<style>{_STYLE}</style><h1>FedForget: the paper's experiments</h1>"]  # fmt: skip
    parts += map(_table, first)
    for name, what, tables, figures in sections:
        parts.append(f"<h2>{escape(name)} <small>({escape(what)})</small></h2>")
        parts += [_image(path) for path in figures if path.suffix == ".svg"]
        parts += [_table(table) for table in tables]
    parts += [_table(seeds), _table(settings_table(out)), "</html>"]
    write_durably(out / NAME, "\n".join(parts).encode())
    return out / NAME


def _image(path: Path) -> str:
    with storage_errors(path):
        data = base64.b64encode(path.read_bytes()).decode()
    return f'<p><img alt="{escape(path.stem)}" src="data:image/svg+xml;base64,{data}"></p>'


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.header)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in table.rows)
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return f'<h3>{escape(table.title)}</h3><div class="wide"><table><tr>{head}</tr>{body}</table></div>{note}'


def _cell(value: Any) -> str:
    kind = ' class="n"' if isinstance(value, int | float) else ""
    return f"<td{kind}>{escape(shown(value))}</td>"


def shown(value: Any) -> str:
    """A table's value for people: three or four digits, thousands in groups."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 10 else f"{value:,.1f}" if abs(value) < 1000 else f"{value:,.0f}"  # noqa: PLR2004
    return f"{value:,}" if isinstance(value, int) else str(value)


def read_settings(out: Path) -> dict[str, dict[str, Any]]:
    """How each experiment in a results directory was run; empty if that was not recorded."""
    path = out / SETTINGS
    if not path.exists():
        return {}
    with storage_errors(path):
        try:
            found: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
            return {name: dict(each) for name, each in found.items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise InvalidInput(
                f"{path} does not hold settings: {error}", hint="delete it; the results do not need it"
            ) from error


def settings_table(out: Path) -> Table:
    """One line for each experiment."""
    settings = read_settings(out)
    settings = {
        name: {_RENAMED.get(key, key): value for key, value in found.items()} for name, found in settings.items()
    }
    names = [name for name in dict.fromkeys(name for found in settings.values() for name in found) if name not in _ROWS]
    rows = [(experiment, *(str(found.get(name, "-")) for name in names)) for experiment, found in settings.items()]
    return Table("How it was run", ("experiment", *names), rows)
