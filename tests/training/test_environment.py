"""What is known of the environment: bytes are promised between equal ones, and a model name may span generations."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedforget.training.arithmetic import fingerprint
from fedforget.training.environment import _processor, arithmetic

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


@pytest.mark.parametrize(
    "name", ["ATEN_CPU_CAPABILITY", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE"]
)
def test_variable_that_selects_loops_is_part_of_the_arithmetic(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """On this processor it may change no result of the test operations, and yet the bits of others."""
    monkeypatch.delenv(name, raising=False)
    without = fingerprint.__wrapped__()
    monkeypatch.setenv(name, "another")
    assert f"{name}=another" in fingerprint.__wrapped__()["variables"]
    assert arithmetic(fingerprint.__wrapped__()) != arithmetic(without)
