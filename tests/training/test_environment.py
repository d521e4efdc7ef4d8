"""The name of the processor: bytes are promised between equal environments, and a model name may span generations."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedforget.training.environment import _processor

EPYC = """processor\t: 0
cpu family\t: 25
model\t\t: {model}
model name\t: AMD EPYC
flags\t\t: fpu avx {flags}

processor\t: 1
model name\t: another
"""


@pytest.mark.parametrize(
    ("model", "flags", "expected"),
    [
        (17, "avx2 avx512f", "AMD EPYC, family 25, model 17, avx512f"),
        (1, "avx2", "AMD EPYC, family 25, model 1, avx2"),
        (1, "", "AMD EPYC, family 25, model 1, avx"),
    ],
)
def test_processors_of_one_model_name_are_distinguished(tmp_path: Path, model: int, flags: str, expected: str) -> None:
    (tmp_path / "cpuinfo").write_text(EPYC.format(model=model, flags=flags))
    assert _processor(tmp_path / "cpuinfo") == expected


def test_processor_has_a_name_without_cpuinfo(tmp_path: Path) -> None:
    assert _processor(tmp_path / "nothing")
