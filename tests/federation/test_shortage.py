"""Lack of memory is distinguished from other failures, for every source of the error."""

from __future__ import annotations

import errno

import pytest
import torch

from fedforget.federation.shortage import is_lack_of_memory


def of_torch() -> BaseException:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**55)
    return caught.value


def test_errors_of_python_system_and_torch_are_lack_of_memory() -> None:
    assert is_lack_of_memory(MemoryError())
    assert is_lack_of_memory(OSError(errno.ENOMEM, "Cannot allocate memory"))
    assert is_lack_of_memory(of_torch())


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), RuntimeError("shapes differ"), ValueError("memory")])
def test_other_errors_are_not_lack_of_memory(error: Exception) -> None:
    assert not is_lack_of_memory(error)
