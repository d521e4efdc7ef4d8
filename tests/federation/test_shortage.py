"""Lack of memory is told from other failures, whoever says it."""

from __future__ import annotations

import errno

import pytest
import torch

from fedforget.federation.shortage import is_lack_of_memory


def of_torch() -> BaseException:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**55)
    return caught.value


def test_every_way_of_saying_it() -> None:
    assert is_lack_of_memory(MemoryError())
    assert is_lack_of_memory(OSError(errno.ENOMEM, "Cannot allocate memory"))
    assert is_lack_of_memory(of_torch())


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), RuntimeError("shapes differ"), ValueError("memory")])
def test_nothing_else(error: Exception) -> None:
    assert not is_lack_of_memory(error)
