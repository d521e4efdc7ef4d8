"""A client's book is compared with its seal when it is first read.

So a damaged one stops every command that reads it, before anything changes. A command that does not read it gives what
it gives on the whole run, and leaves the book and its seal alone. ``doctor`` and ``verify`` read every book.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedforget import Request, Run
from fedforget.algorithm.ids import Id
from fedforget.errors import RunDamaged
from fedforget.store import run_directory
from fedforget.store.names import BOOKS
from tests.cli.commandline import (
    book_of,
    call,
    copy,
    empty_book,
    everything_of,
    function_of,
    good,
    good_json,
    refused,
    samples_of,
)
from tests.requests import world

FREE, DRAWN = 2, 0  # clients that no round has drawn, and that some round has
LEVELS = ("sample", "client")


def damage(path: Path) -> bytes:
    """Flip a byte in the middle. Return what the file was."""
    whole = path.read_bytes()
    place = len(whole) // 2
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
    return whole


def target(run: Path, level: str) -> tuple[str, ...]:
    """A client that no draw held, or a sample of it. The run must be whole."""
    client = ("--client", str(FREE))
    return client if level == "client" else (*client, "--sample", str(samples_of(run, FREE)[0]))


def require_reported(run: Path, book: str) -> None:
    """Require that both commands that read everything name the book."""
    doctor = call("doctor", run, "--json")
    assert doctor.code == 1
    bad = [check["name"] for check in doctor.json["checks"] if not check["ok"]]
    assert bad == [book, "seeds"], "its clients' seeds are in it"
    assert str(run / book) in doctor.error["message"]
    assert str(run / book) in refused(6, "run-damaged", "verify", run)["message"]


def require_whole(run: Path) -> None:
    assert good_json("doctor", run)["ok"]
    assert good_json("verify", run)["ok"]


@pytest.mark.parametrize("book", BOOKS)
def test_doctor_and_verify_name_any_damaged_book(trained: Path, book: str) -> None:
    whole = damage(trained / book)
    before = everything_of(trained)
    require_reported(trained, book)
    assert everything_of(trained) == before
    (trained / book).write_bytes(whole)
    assert good_json("doctor", trained)["ok"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("other", ["of another client", "without clients"])
def test_a_free_request_does_not_read_the_books_of_others(
    trained: Path, tmp_path: Path, other: str, level: str
) -> None:
    request = target(trained, level)
    book = empty_book(trained) if other == "without clients" else book_of(trained, DRAWN)
    assert book != book_of(trained, FREE)
    undisturbed = copy(trained, tmp_path / "undisturbed")
    good("forget", undisturbed, *request)
    whole = damage(trained / book)
    damaged = (trained / book).read_bytes()
    (receipt,) = good_json("forget", trained, *request)["receipts"]
    assert (receipt["recomputed_steps"], receipt["state"]) == (0, "purged")
    assert (trained / book).read_bytes() == damaged
    assert good_json("state", trained) == good_json("state", undisturbed)
    require_reported(trained, book)
    (trained / book).write_bytes(whole)
    assert function_of(trained) == function_of(undisturbed)
    require_whole(trained)


@pytest.mark.parametrize("level", LEVELS)
def test_a_request_for_a_client_of_a_damaged_book_changes_nothing(trained: Path, level: str) -> None:
    request, book = target(trained, level), book_of(trained, FREE)
    whole = damage(trained / book)
    before = everything_of(trained)
    for more in ((), ("--dry-run",)):
        assert str(trained / book) in refused(6, "run-damaged", "forget", trained, *request, *more)["message"]
    assert everything_of(trained) == before
    (trained / book).write_bytes(whole)
    good("forget", trained, *request)
    require_whole(trained)


@pytest.mark.parametrize("level", LEVELS)
def test_pending_requests_for_a_client_of_a_damaged_book_stay_pending(trained: Path, level: str) -> None:
    request, book = target(trained, level), book_of(trained, FREE)
    good("forget", trained, *request, "--defer")
    whole = damage(trained / book)
    before = everything_of(trained)
    assert str(trained / book) in refused(6, "run-damaged", "run-pending", trained, "--all")["message"]
    assert everything_of(trained) == before
    (trained / book).write_bytes(whole)
    good("run-pending", trained, "--all")
    require_whole(trained)


# With data of one's own, which are read without the books


def half_trained(path: Path) -> Run:
    run = world.opened(path, without=[Request(4)])
    run.train(until=3)
    return run


@pytest.mark.parametrize(
    "command",
    [
        lambda run: run.train(),
        lambda run: run.train(recompute_all=True),
        lambda run: run.forget(Request(_drawn_first(run))),
        lambda run: run.forget(new_seed=True),
        lambda run: run.add(Request(4)),
        lambda run: run.verify(),
    ],
    ids=["train", "recompute", "forget", "new seed", "add", "verify"],
)
def test_commands_that_compute_read_every_book_before_changes(tmp_path: Path, command: Callable[[Run], object]) -> None:
    run = half_trained(tmp_path / "run")
    for book in BOOKS:
        whole = damage(run.path / book)
        before = everything_of(run.path)
        with pytest.raises(RunDamaged, match=book):
            command(run)
        assert everything_of(run.path) == before, book
        (run.path / book).write_bytes(whole)
    command(run)
    assert run.verify().ok


def _drawn_first(run: Run) -> Id:
    with run_directory.reading(run.path) as found:
        first = found.server.first_rounds()
    return min(first, key=first.__getitem__)
