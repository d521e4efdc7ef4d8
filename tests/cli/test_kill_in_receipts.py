"""kill -9 while a key is made or replaced: the same command again works, and files and record agree.

The moments are chosen as in ``test_kill.py``, and here all of them are tried: there are few.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fedforget.evidence.receipts.receipt_key import key_id, read_public_key, signing_key
from fedforget.store import run_directory
from fedforget.store.names import PRIVATE_KEY, PUBLIC_KEY
from tests.cli.commandline import Zygote, copy, good, good_json
from tests.cli.test_kill import EVERY, PLAN, Work, count_touches, kill_at, kill_in_calls, strace
from tests.tally import tally

__all__ = ["strace"]  # a fixture


class Showing(Work):
    """``receipt show`` on copies of a run."""

    def __init__(self, tmp_path: Path, start: Path, *command: str) -> None:
        self._tmp_path, self._start, self._command, self._runs = tmp_path, start, command, 0
        self.name = "show a receipt with a new key"

    def on(self, run: Path) -> tuple[str | Path, ...]:
        return ("receipt", "show", run, *self._command)

    def require_recovery(self, run: Path) -> None:
        """Give the same command again, then the plain one: files and record agree on one key."""
        file = self._tmp_path / "receipt.json"
        for command in (self.on(run), self.on(run), ("receipt", "show", run, self._command[0])):
            file.write_text(good(*command).out)
            assert good_json("receipt", "verify", file, "--key", run / PUBLIC_KEY)["ok"]
        with run_directory.reading(run) as found:
            known = found.record.receipt_key
        assert known == key_id(read_public_key(run / PUBLIC_KEY)) == key_id(signing_key(run, known).public_key())
        good("train", run)  # a process killed while closing the record left it intact, but not canonical
        assert good_json("doctor", run)["ok"]
        shutil.rmtree(run)
        tally(f"kills/{self.name}")


@pytest.fixture(scope="module")
def forgot(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    run = tmp_path_factory.mktemp("forgot") / "run"
    good("train", *PLAN, "--out", run)
    (receipt,) = good_json("forget", run, "--client", "1")["receipts"]
    return run, receipt["id"]


@pytest.fixture
def make_showing(tmp_path: Path, forgot: tuple[Path, str]) -> Callable[[str], Showing]:
    run, identifier = forgot

    def make(what: str) -> Showing:
        start = copy(run, tmp_path / "start")
        if what == "the first key":
            return Showing(tmp_path, start, identifier)
        good("receipt", "show", start, identifier)
        good("cancel", start, good_json("forget", start, "--client", "2", "--defer")["receipts"][0]["id"])
        if what == "a lost key":
            (start / PRIVATE_KEY).unlink()
        else:  # the halves of two keys
            good("receipt", "show", other := copy(run, tmp_path / "other"), identifier)
            shutil.copy(other / PUBLIC_KEY, start / PUBLIC_KEY)
        return Showing(tmp_path, start, identifier, "--new-key")

    return make


WHATS = ["the first key", "a lost key", "halves of two keys"]


@pytest.mark.parametrize("what", WHATS)
def test_killed_in_every_rename(
    zygote: Zygote, tmp_path: Path, make_showing: Callable[[str], Showing], strace: str, what: str
) -> None:
    kill_in_calls(zygote, strace, make_showing(what), tmp_path, {"rename": EVERY})


@pytest.mark.slow
@pytest.mark.parametrize("what", WHATS)
def test_killed_at_every_moment(
    zygote: Zygote, tmp_path: Path, make_showing: Callable[[str], Showing], what: str
) -> None:
    showing = make_showing(what)
    count = count_touches(zygote, showing, tmp_path)
    assert count > 20
    kill_at(zygote, showing, list(range(1, count + 1)))
