"""Every kind of forget runs through ``algorithm.forget.forget``: what is proved is what runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fedforget import Request
from fedforget.algorithm import forget as algorithm
from fedforget.errors import ClientUnreachable
from fedforget.requests import processor
from fedforget.requests.lifecycle import Basis
from tests.requests.world import opened
from tests.session.deployed import Deployed
from tests.session.test_deployment import used

Calls = list[list[Request]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The requests of each call of ``forget``, from now on. A removal outside of a call fails the test."""
    found: Calls = []
    inside = False

    def forget(server: Any, requests: Sequence[Request], *rest: Any) -> Any:
        nonlocal inside
        found.append(list(requests))
        inside = True
        try:
            return algorithm.forget(server, requests, *rest)
        finally:
            inside = False

    real = algorithm.apply

    def apply(*given: Any) -> None:
        assert inside
        real(*given)

    monkeypatch.setattr(processor, "forget", forget)
    monkeypatch.setattr(algorithm, "apply", apply)
    return found


def test_local_requests_each_call_forget_once(tmp_path: Path, calls: Calls) -> None:
    run = opened(tmp_path / "run")
    run.train()
    run.forget(client=3, sample=1, basis="exogenous")
    run.forget(client=2, basis="exogenous")
    assert calls == [[Request(3, 1)], [Request(2)]]


def test_local_batch_and_pending_requests_call_forget_once(tmp_path: Path, calls: Calls) -> None:
    run = opened(tmp_path / "run")
    run.train()
    batch = [Request(3, 1), Request(2)]
    run.forget(requests=batch, basis="exogenous")
    run.forget(client=0, basis="exogenous", defer=True)
    run.forget(client=1, sample=0, basis="exogenous", defer=True)
    run.run_pending()
    assert calls[0] == batch
    assert list(map(set, calls[1:])) == [{Request(0), Request(1, 0)}]


def test_deployed_client_calls_forget_once(tmp_path: Path, calls: Calls) -> None:
    there = Deployed(tmp_path / "run")
    there.train(2)
    there.forget(Request(3))
    assert calls == [[Request(3)]]


def test_sample_withdrawn_at_its_client_calls_forget_once(tmp_path: Path, calls: Calls) -> None:
    there = Deployed(tmp_path / "run")
    there.train(2)
    handle = there.withdraw(4, 2)
    there.run_pending()
    assert calls == [[Request(4, f"withdrawal:{handle}")]]


def test_silent_client_whose_request_waits_calls_forget_once(tmp_path: Path, calls: Calls) -> None:
    there = Deployed(tmp_path / "run")
    there.train(3)
    handle = there.withdraw(4, used(there, 4))

    there.silence_at_removal(4)
    with pytest.raises(ClientUnreachable):
        there.run_pending()
    there.silence(4)
    there.forget(Request(4), basis=Basis.MODEL_INFORMED)
    assert calls == [[Request(4, f"withdrawal:{handle}")], [Request(4)]]
    assert {receipt.state for receipt in there.receipts()} == {"purged"}
