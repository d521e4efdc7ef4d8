"""Requests: what they ask for, however it is spelled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedforget import Request
from fedforget.algorithm.forget import forget
from fedforget.algorithm.learn import learn
from fedforget.algorithm.plan import Plan
from fedforget.errors import InvalidId
from tests.helpers import World, prf_server, view, without

WORLD: World = {0: (0, 1, 2), 3: (7, "a", "03"), "ward-7": (5,)}
PLAN = Plan(2, 2, 2, 4)


@pytest.mark.parametrize(
    ("client", "sample"), [(3, 7), ("3", "7"), (3, "7"), (np.int64(3), np.str_("7")), (np.str_("3"), np.uint8(7))]
)
def test_equal_ids_give_equal_requests(client: Any, sample: Any) -> None:
    spelled = Request(client, sample)
    assert spelled == Request(3, 7)
    assert (type(spelled.client), type(spelled.sample)) == (int, int)
    server = prf_server(WORLD, PLAN, 1)
    learn(server, 4)
    forget(server, [spelled])
    never = prf_server(without(WORLD, [Request(3, 7)]), PLAN, 1)
    learn(never, 4)
    assert view(server) == view(never)


@pytest.mark.parametrize("client", [True, 3.0, None, -1, b"3"])
def test_request_with_an_impossible_id_is_refused(client: Any) -> None:
    with pytest.raises(InvalidId):
        Request(client)
    with pytest.raises(InvalidId):
        Request(client)
    with pytest.raises(InvalidId):
        Request(0, False if client is None else client)


def test_request_as_text_names_its_target() -> None:
    assert (Request(3).level, str(Request(3))) == ("client", "client 3")
    assert (Request(3, "a").level, str(Request(3, "a"))) == ("sample", "sample a of client 3")
