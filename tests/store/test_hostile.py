"""Directories that an attacker made, opened with every command: no effect outside, no hang, little memory, and always a
clear refusal; commands that look leave every byte and every time stamp as they were.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fedforget import Request
from fedforget.algorithm.forget import Decision
from fedforget.disk.door import Door
from fedforget.disk.seen import settled_signature
from fedforget.requests.inbox import Inbox
from fedforget.requests.intents import BatchFacts, Intent, new_batch_id
from fedforget.requests.lifecycle import Submission
from fedforget.store import run_directory
from fedforget.store.names import BOOKS, SEALS, SERVER, USES
from fedforget.store.seals import Seals
from tests.cli.commandline import Result, Zygote, good, good_json, train, zygote_in
from tests.store.hostile import BOOK, KINDS, READ, Case, altered, cases, mutated, one_of_each
from tests.tally import exhaustive, tally

CASES = cases()
MEMORY = 2**30
UNEXPECTED, NO_MEMORY = 70, 14
TRAINING = ("verify", "receipt", "train", "forget", "pending", "rebuild", "add")
WORK = (
    "train", "forget", "pending", "rebuild", "show", "export", "add", "cancel", "policy", "forget record", "link",
    "enroll",
)  # fmt: skip
WRITTEN_TO = [  # each group of cases with some commands, and each command
    (case, WORK[(2 * place + more) % len(WORK)])
    for place, case in enumerate(one_of_each(CASES, lambda case: case.group))
    for more in range(2)
]
WORKED_ON = (
    [(case, command) for case in CASES for command in WORK]
    if exhaustive()
    else [
        (case, WORK[(place + more) % len(WORK)])
        for place, case in enumerate(one_of_each(CASES, lambda case: case.kind, 2))
        for more in (0, len(WORK) // 2)
    ]
)
QUICK = one_of_each(CASES, lambda case: case.kind)
LOOKED_AT = CASES if exhaustive() else one_of_each(CASES, lambda case: case.kind, 1)  # ``make torture`` takes all
MUTATIONS, QUICK_MUTATIONS = 1500 if exhaustive() else 240, 40


@dataclass(frozen=True)
class Runs:
    """A run at rest and one that was killed at work, each with something in every table and file."""

    zygote: Zygote
    rest: Path
    crashed: Path
    receipt: Path
    key: Path
    waiting: str  # the id of a request that waits
    newcomers: Path
    enrolment: Path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    root = tmp_path_factory.mktemp("hostile")
    run = root / "rest"
    train(run)
    good("forget", run, "--client", "1", "--basis", "exogenous", "--idempotency-key", "k")
    (erased,) = good_json("status", run)["receipts"]
    (root / "receipt.json").write_text(json.dumps(good_json("receipt", "show", run, erased["id"])))
    shutil.copy(run / "receipt-key.pub.pem", root / "key.pem")
    (root / "newcomers.jsonl").write_text('{"client": 1}\n')
    good("client", "init", "--state-dir", root / "client", "--client", "9", "--data", "digits", "--clients", "12",
         "--out", root / "enrolment.json")  # fmt: skip
    good("policy", run, "batch", "--window", "7")
    (waiting,) = good_json("forget", run, "--client", "2", "--defer")["receipts"]
    with run_directory.writing(run) as opened:
        opened.record.book.add_aliases(["r-other"], [erased["id"]])
    Inbox(run).leave(Submission.of((Request(3),), "unknown"))
    shutil.copytree(run, root / "working")
    with run_directory.writing(root / "working") as opened:
        intent = Intent((), Decision((), (), (), goal=5, rewind_to=5, batch_id=new_batch_id()))
        with opened.record.book.transaction():
            opened.record.batches.enter(intent, BatchFacts())
        opened.server.begin(intent.batch_id)
        opened.clients.database.run("UPDATE first_uses SET step = step")
        shutil.copytree(root / "working", root / "crashed")
    with zygote_in(root) as zygote:
        yield Runs(
            zygote, run, root / "crashed", root / "receipt.json", root / "key.pem", waiting["id"],
            root / "newcomers.jsonl", root / "enrolment.json",
        )  # fmt: skip


def looking(run: Path, runs: Runs, outside: Path) -> dict[str, tuple[str | Path, ...]]:
    return {
        "doctor": ("doctor", run),
        "status": ("status", run),
        "clients": ("clients", run),
        "requests": ("requests", run),
        "state": ("state", run),
        "verify": ("verify", run, "--federation", "inline"),
        "dry run": ("forget", run, "--client", "3", "--dry-run"),
        "key": ("receipt", "verify", runs.receipt, "--key", run / "receipt-key.pub.pem"),
        "receipt": ("receipt", "verify", runs.receipt, "--key", runs.key, "--run", run, "--federation", "inline"),
    }


def working(run: Path, runs: Runs) -> dict[str, tuple[str | Path, ...]]:
    return {
        "train": ("train", run, "--federation", "inline"),
        "forget": ("forget", run, "--client", str(READ), "--federation", "inline"),
        "pending": ("run-pending", run, "--all", "--federation", "inline"),
        "rebuild": ("doctor", run, "--rebuild", "--federation", "inline"),
        "show": ("receipt", "show", run, "r-other"),
        "export": ("export", run, run.with_name("exported.pt")),
        "add": ("add", run, "--from", runs.newcomers, "--returning", "--seed", "7", "--federation", "inline"),
        "link": ("receipt", "link", run, runs.receipt, "--key", runs.key),
        "policy": ("policy", run, "batch", "--window", "3"),
        "cancel": ("cancel", run, runs.waiting),
        "enroll": ("enroll", run, runs.enrolment),
        "forget record": ("forget-record", run, "--yes"),
    }


def seen(root: Path) -> dict[str, tuple[object, ...]]:
    """Everything below a directory but the times at which it was read."""
    found: dict[str, tuple[object, ...]] = {}
    for path in (root, *sorted(root.rglob("*"))):
        known = path.lstat()
        small = stat.S_ISREG(known.st_mode) and known.st_size < 2**25
        content = path.read_bytes() if small else b""
        found[str(path)] = known.st_mode, known.st_size, known.st_mtime_ns, known.st_ctime_ns, known.st_nlink, content
    return found


def require_clear(result: Result, what: str) -> None:
    assert result.code >= 0, f"{what}: killed by signal {-result.code}"
    assert result.code not in (UNEXPECTED, NO_MEMORY), f"{what}: {result.err[-300:]}"
    assert "Traceback" not in result.err, what
    assert all(each.isprintable() or each == "\n" for each in result.out + result.err), f"{what}: {result!r}"
    if result.code:
        assert "error: " in result.err or '"error": ' in result.err, f"{what}: {result}"


class Attack:
    """One hostile directory, and files outside that must stay as they are."""

    def __init__(self, case: Case, runs: Runs, tmp_path: Path) -> None:
        self.case, self.runs = case, runs
        self.run, self.outside = tmp_path / "run", tmp_path / "outside"
        shutil.copytree(runs.crashed if case.crashed else runs.rest, self.run)
        self.outside.mkdir()
        (self.outside / "victim").write_text("not of this run")
        case.make(self.run, self.outside)

    def look(self, *names: str) -> None:
        """None of these commands has an effect. One of them refuses, or else ``verify`` does."""
        before, outside, codes = seen(self.run), seen(self.outside), dict[str, int]()
        commands = looking(self.run, self.runs, self.outside)
        for name in (*(name for name in commands if name in names), "verify"):
            again = name in codes or (any(codes.values()) and name not in names)
            if not again and not (self.case.long and name in TRAINING):
                command = commands[name]
                result = self.runs.zygote.run(*command, memory=MEMORY)
                require_clear(result, f"{self.case.name}, {name}")
                assert seen(self.outside) == outside, f"{self.case.name}, {name}: an effect outside"
                assert seen(self.run) == before, f"{self.case.name}, {name}: looking wrote"
                codes[name] = result.code
                tally("hostile/commands that look")
        assert self.case.harmless or any(codes.values()), f"{self.case.name} is not refused: {codes}"

    def work(self, *names: str) -> None:
        outside = {path: known[1:] for path, known in seen(self.outside).items()}
        for name, command in working(self.run, self.runs).items():
            if name in names and not (self.case.long and name in TRAINING):
                result = self.runs.zygote.run(*command, memory=MEMORY)
                require_clear(result, f"{self.case.name}, {name}")
                now = {path: known[1:] for path, known in seen(self.outside).items()}
                assert now == outside, f"{self.case.name}, {name}: an effect outside"
                tally("hostile/commands that work")


def named(each: Case | str) -> str:
    return each.name if isinstance(each, Case) else each


def test_hostile_cases_cover_many_kinds(runs: Runs) -> None:
    assert len({case.kind for case in CASES}) >= 200
    assert {case.kind for case in QUICK} == {case.kind for case in CASES}
    assert {command for _, command in WRITTEN_TO} == {*WORK} == set(working(runs.rest, runs))
    assert {case.group for case, _ in WRITTEN_TO} == {case.group for case in CASES}


def test_unaltered_runs_pass_every_command(runs: Runs, tmp_path: Path) -> None:
    """Else every refusal would be for another reason."""
    for path, refused in ((runs.rest, set()), (runs.crashed, {"doctor", "state", "verify", "receipt"})):
        before = seen(path)
        for name, command in looking(path, runs, tmp_path / "outside").items():
            result = runs.zygote.run(*command, memory=MEMORY)
            assert (result.code != 0) == (name in refused), f"{name}: {result}"
            assert seen(path) == before, name
        copy = shutil.copytree(path, tmp_path / path.name)
        for name, command in working(copy, runs).items():
            result = runs.zygote.run(*command, memory=MEMORY)
            if name == "enroll":  # its clients are on this machine
                assert result.code == 3, result
                assert "on this machine" in result.err, result
            elif name == "cancel":
                assert "usage" not in result.err, result  # it was carried out before
            else:
                assert result.code == 0, f"{name}: {result}"


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_reading_a_hostile_directory_is_safe(runs: Runs, tmp_path: Path, case: Case) -> None:
    attack = Attack(case, runs, tmp_path)
    others = ("status", "requests", "state", "receipt", "key", "clients", "dry run")
    attack.look("doctor", others[QUICK.index(case) % len(others)])


@pytest.mark.slow
@pytest.mark.parametrize("case", LOOKED_AT, ids=lambda case: case.name)
def test_every_reading_command_is_safe_on_a_hostile_directory(runs: Runs, tmp_path: Path, case: Case) -> None:
    Attack(case, runs, tmp_path).look(*looking(tmp_path, runs, tmp_path))


def alone(runs: Runs, tmp_path: Path, name: str) -> Attack:
    return Attack(next(case for case in CASES if case.name == name), runs, tmp_path)


ONLY_WHOLE = (  # what only those notice who compute the roots of the whole book
    "rows root of another book", "rows client of another book", "rows many clients of another book",
)  # fmt: skip
OF_THE_BOOK = [
    case
    for case in CASES
    if (f" {BOOK}" in case.name and not case.crashed and not case.harmless) or "another book" in case.name
]

OF_EACH_PLACE = one_of_each(OF_THE_BOOK, lambda case: " ".join(case.kind.split()[:2]))


@pytest.mark.parametrize("case", OF_THE_BOOK if exhaustive() else OF_EACH_PLACE, ids=lambda case: case.name)
def test_hostile_book_is_named_by_the_doctor_and_refused_to_those_who_read_it(
    runs: Runs, tmp_path: Path, case: Case
) -> None:
    """Nothing of the function has changed then."""
    attack = Attack(case, runs, tmp_path)
    result = runs.zygote.run("doctor", attack.run, "--json", memory=MEMORY)
    require_clear(result, case.name)
    assert result.code == 1, result
    told = {check["name"]: check["ok"] for check in json.loads(result.out)["checks"]}
    assert not told[BOOK], told
    before = function_of(attack.run)
    for command in (("clients", attack.run), working(attack.run, runs)["pending"]):
        result = runs.zygote.run(*command, "--json", memory=MEMORY)
        require_clear(result, case.name)
        if case.name not in ONLY_WHOLE:
            assert result.code in (6, 7, 18), result  # damaged, too new, too old
            assert BOOK in result.error["message"] or "FedForget 0.2" in result.error["message"]
            assert function_of(attack.run) == before


def function_of(run: Path) -> dict[str, tuple[object, ...]]:
    names = {str(run / name) for name in ("plan.toml", SERVER, USES, *BOOKS)}
    return {name: known for name, known in seen(run).items() if name in names or Path(name).parent == run / "models"}


@pytest.mark.parametrize("kind", ["cut", "head", "noise", "empty"])
def test_command_that_reads_no_hostile_book_succeeds_and_keeps_it(runs: Runs, tmp_path: Path, kind: str) -> None:
    attack = alone(runs, tmp_path, f"file {BOOK} {kind}")
    before = seen(attack.run)[str(attack.run / BOOK)]
    for command in (
        ("state", attack.run),
        ("export", attack.run, tmp_path / "model.pt"),
        ("forget", attack.run, "--client", "0", "--defer"),
        ("policy", attack.run, "batch", "--window", "5"),
    ):
        assert (result := runs.zygote.run(*command, memory=MEMORY)).code == 0, result
    assert seen(attack.run)[str(attack.run / BOOK)] == before
    assert BOOK in runs.zygote.run("doctor", attack.run, memory=MEMORY).out


@pytest.mark.parametrize(
    "name",
    [
        "value server tree_key number", "value server rounds_done blob", "column requests.deadline empty",
        "column roster.clients number", "tree uses.db loop", f"book {BOOK} end beyond",
    ],
)  # fmt: skip
def test_seals_made_by_another_account_of_this_system_vouch_for_nothing(runs: Runs, tmp_path: Path, name: str) -> None:
    """It knows the signatures of the files that it made."""
    attack = alone(runs, tmp_path, name)
    seals = Seals(attack.run).all()
    door = Door(attack.run)
    Seals(attack.run).set({each: replace(seal, seen=settled_signature(door, each)) for each, seal in seals.items()})
    (attack.run / SEALS).chmod(0o666)  # as good as another owner, which only root can give it
    for command in (
        ("clients", attack.run),
        ("clients", attack.run, "--client", str(READ)),
        ("run-pending", attack.run),
    ):
        result = runs.zygote.run(*command, "--json", memory=MEMORY)
        require_clear(result, f"{name}, {command[0]}")
        assert result.code == 6, result


@pytest.mark.parametrize("command", ["clients", "verify"])
def test_book_of_holes_is_refused_to_those_who_read_it(runs: Runs, tmp_path: Path, command: str) -> None:
    attack = alone(runs, tmp_path, f"holes {BOOK}")
    result = runs.zygote.run(command, attack.run, "--json", memory=MEMORY)
    assert result.code == 6, result
    assert f"{BOOK} is mostly holes" in result.error["message"]


@pytest.mark.parametrize("name", ["server.db", "uses.db", "record.db"])
@pytest.mark.parametrize("after", ["", " and its log"])
def test_status_refuses_a_database_of_holes(runs: Runs, tmp_path: Path, name: str, after: str) -> None:
    attack = alone(runs, tmp_path, f"holes {name}{after}")
    result = runs.zygote.run("status", attack.run, "--json", memory=MEMORY)
    assert result.code == 6, result
    assert "holes" in result.error["message"]


@pytest.mark.parametrize("name", ["holes model of the plan", "model foreign", "model metadata"])
def test_model_that_is_not_of_the_plan_is_not_exported(runs: Runs, tmp_path: Path, name: str) -> None:
    """``verify`` would notice by training; ``export`` and ``doctor`` train nothing."""
    attack = alone(runs, tmp_path, name)
    result = runs.zygote.run("export", attack.run, tmp_path / "model.pt", "--json", memory=MEMORY)
    assert result.code == 6, result
    assert result.error["code"] == "run-damaged"
    assert not (tmp_path / "model.pt").exists()
    assert runs.zygote.run("doctor", attack.run, memory=MEMORY).code == 1


def extended(run: Path, extra: str) -> None:
    """Put a tensor into the last model, and compute every digest again."""
    path = min((run / "models").iterdir())
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    end = len(data) - 8 - length
    header[extra] = {"dtype": "F32", "shape": [1], "data_offsets": [end, end + 4]}
    text, body = json.dumps(header).encode(), data[8 + length :] + bytes(4)
    made = len(text).to_bytes(8, "little") + text + body
    name = hashlib.blake2b(made, digest_size=32).hexdigest()
    (run / "models" / f"{name}.safetensors").write_bytes(made)
    altered(run, "server.db", f"UPDATE rounds SET model = '{name}' WHERE round = (SELECT max(round) FROM rounds)")


@pytest.mark.parametrize("extra", ["foreign", "server-optimizer/m/foreign"])
def test_foreign_tensor_beside_those_of_the_plan_is_refused(runs: Runs, tmp_path: Path, extra: str) -> None:
    run = shutil.copytree(runs.rest, tmp_path / "run")
    extended(run, extra)
    result = runs.zygote.run("export", run, tmp_path / "model.pt", "--json", memory=MEMORY)
    assert result.code == 6, result
    assert "not those of the plan" in result.error["message"]
    assert "not those of the plan" in runs.zygote.run("doctor", run, memory=MEMORY).out


@pytest.mark.parametrize("kind", ["pipe", "zeros", "directory", "dangling link"])
@pytest.mark.parametrize("which", ["receipt", "key"])
def test_receipt_and_key_must_be_regular_files(runs: Runs, tmp_path: Path, kind: str, which: str) -> None:
    given = {"receipt": Path(shutil.copy(runs.receipt, tmp_path)), "key": Path(shutil.copy(runs.key, tmp_path))}
    KINDS[kind](given[which], tmp_path)
    result = runs.zygote.run("receipt", "verify", given["receipt"], "--key", given["key"], "--json", memory=MEMORY)
    assert result.code == 3, result
    assert str(given[which]) in result.error["message"]


def test_links_to_receipt_and_key_are_followed(runs: Runs, tmp_path: Path) -> None:
    receipt, key = tmp_path / "a", tmp_path / "b"
    receipt.symlink_to(runs.receipt)
    key.symlink_to(runs.key)
    assert runs.zygote.run("receipt", "verify", receipt, "--key", key).code == 0


@pytest.mark.parametrize("kind", ["model", "state", "leaves"])
def test_digest_that_is_not_text_is_refused_by_those_who_read_it(runs: Runs, tmp_path: Path, kind: str) -> None:
    attack = alone(runs, tmp_path, f"json standing {kind} not text")
    attack.look("requests", "receipt")
    result = runs.zygote.run(*working(attack.run, runs)["show"], "--json", memory=MEMORY)
    require_clear(result, kind)
    assert result.code == 6, result


def test_request_that_is_purged_while_its_batch_is_at_work_is_refused(runs: Runs, tmp_path: Path) -> None:
    alone(runs, tmp_path, "rows purged while its batch is at work").look("status", "requests", "doctor")


@pytest.mark.parametrize("name", ["inbox/y.tmp", "seals.tmp", "record.keys.tmp", "models/y.tmp"])
def test_directory_in_place_of_a_temporary_file_is_named(runs: Runs, tmp_path: Path, name: str) -> None:
    run = shutil.copytree(runs.rest, tmp_path / "run")
    (run / name).mkdir()
    result = runs.zygote.run(*working(run, runs)["pending"], "--json")
    assert result.code == 10, result
    assert f"{run / name} is a directory" in result.error["message"]
    (run / name).rmdir()
    assert runs.zygote.run(*working(run, runs)["train"]).code == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rows a billion rounds", "toml K large", "toml E large"])
def test_verify_states_the_cost_of_a_long_replay_before_it_begins(runs: Runs, tmp_path: Path, name: str) -> None:
    """A plan of that many steps may be real: the operator decides whether to wait."""
    attack = alone(runs, tmp_path, name)
    result = runs.zygote.run("verify", attack.run, "--federation", "inline", memory=MEMORY)
    assert result.err.startswith("replaying "), result
    assert "local steps" in result.err
    if result.code != -signal.SIGPROF:
        require_clear(result, name)


@pytest.mark.parametrize(("case", "command"), WRITTEN_TO, ids=named)
def test_writing_to_a_hostile_directory_is_safe(runs: Runs, tmp_path: Path, case: Case, command: str) -> None:
    Attack(case, runs, tmp_path).work(command)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "command"), WORKED_ON, ids=named)
def test_every_writing_command_is_safe_on_a_hostile_directory(
    runs: Runs, tmp_path: Path, case: Case, command: str
) -> None:
    Attack(case, runs, tmp_path).work(command)


@pytest.mark.parametrize("command", ["status", "verify", "doctor", "train"])
def test_random_mutations_are_handled_safely(runs: Runs, tmp_path: Path, command: str) -> None:
    mutate(runs, tmp_path, command, range(QUICK_MUTATIONS // 4))


@pytest.mark.slow
@pytest.mark.parametrize("command", ["status", "verify", "doctor", "state", "train", "forget"])
def test_many_random_mutations_are_handled_safely(runs: Runs, tmp_path: Path, command: str) -> None:
    mutate(runs, tmp_path, command, range(MUTATIONS // 6))


def mutate(runs: Runs, root: Path, command: str, numbers: range) -> None:
    for number in numbers:
        path = shutil.copytree(runs.crashed if number % 3 == 0 else runs.rest, root / str(number))
        what = f"mutation {number}, {mutated(path, number)}, {command}"
        before, looks = seen(path), looking(path, runs, root / "outside")
        result = runs.zygote.run(*(looks | working(path, runs))[command], memory=MEMORY)
        require_clear(result, what)
        assert command not in looks or seen(path) == before, what
        tally("hostile/random mutations")
        shutil.rmtree(path)
