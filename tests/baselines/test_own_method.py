"""The page about one's own method is run as it is printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).parents[2] / "docs" / "own-method.md"


def test_the_method_of_the_document_runs_and_is_not_exact() -> None:
    method, comparison = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(method, str(DOCUMENT), "exec"), names)
    exec(compile(comparison, str(DOCUMENT), "exec"), names)
    unlearned, scratch = names["digests"]["FATS"]
    assert unlearned == scratch
    unlearned, scratch = names["digests"]["stop using"]
    assert unlearned != scratch


def test_the_method_of_the_document_has_about_thirty_lines() -> None:
    method = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)[0]
    code = method.split("class ")[1]
    assert len([line for line in code.splitlines() if line.strip()]) <= 30
