"""Proofs of absence and presence in the receipts of real runs, and what a run keeps of them."""

from __future__ import annotations

import base64
import copy
import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import fedforget.training.environment
from fedforget import Request, Run
from fedforget.algorithm.ports import Trained
from fedforget.algorithm.tree import Path as TreePath
from fedforget.errors import InvalidInput, ReceiptRefused, RunDamaged, StorageFailed
from fedforget.evidence.receipts import check
from fedforget.evidence.receipts.check import ReceiptCheck, read_receipt
from fedforget.evidence.receipts.envelope import seal
from fedforget.evidence.receipts.issue import open_target
from fedforget.evidence.receipts.receipt_key import signing_key
from fedforget.evidence.receipts.series import check_series, make_links, read_place
from fedforget.requests.leaves import TargetLeaves, encode
from fedforget.requests.vault import LEAVES
from fedforget.session import exporting
from fedforget.session.engine import Engine
from fedforget.store import run_directory
from fedforget.store.names import PUBLIC_KEY, RECORD
from tests.requests.world import DATA, opened

SMALLEST = 0  # a client of three samples


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = opened(tmp_path_factory.mktemp("proofs") / "run")
    run.train()
    return run.path


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Run:
    return opened(Path(shutil.copytree(made, tmp_path / "run")))


def statement_of(envelope: dict[str, Any]) -> dict[str, Any]:
    return json.loads(base64.b64decode(envelope["payload"]))


def predicate_of(run: Run, identifier: str, *, public: bool = False) -> dict[str, Any]:
    return dict(statement_of(run.signed_receipt(identifier, public=public))["predicate"])


def file_of(run: Run, envelope: Any, name: str = "receipt.json") -> Path:
    path = run.path.parent / name
    path.write_text(json.dumps(envelope))
    return path


def offline(run: Run, envelope: Any, target: Request, request: str) -> ReceiptCheck:
    """Check a receipt with the opening for a target."""
    opening = file_of(run, open_target(run.path, request, target).as_dict(), "opening.json")
    return read_receipt(file_of(run, envelope), run.path / PUBLIC_KEY, opening)


def with_run(run: Run, envelope: Any) -> ReceiptCheck:
    return run.check_receipt(read_receipt(file_of(run, envelope), run.path / PUBLIC_KEY), sample_rounds=0)


def erase(run: Run, *targets: Request, **how: Any) -> list[str]:
    return [receipt.id for receipt in run.forget(list(targets), basis="exogenous", **how)]


@pytest.mark.parametrize("public", [True, False])
def test_every_request_of_a_batch_is_proven_and_opened(run: Run, public: bool) -> None:
    targets = [Request(2), Request(3, 1), Request(4, 0), Request(3, 5), Request("1", "2")]
    for target, request in zip(targets, erase(run, *targets), strict=True):
        envelope = run.signed_receipt(request, public=public)
        found = offline(run, envelope, target, request)
        assert (found.absence_shown, found.opened) == (True, True)
        assert found.presence_shown is (None if public else True)
        assert with_run(run, envelope).ok
        predicate = statement_of(envelope)["predicate"]
        assert (predicate["absence"]["sample"] is None) == (target.sample is None)
        others = [other for other in targets if other != target]
        for other in others:
            with pytest.raises(InvalidInput, match="was not for"):
                open_target(run.path, request, other)


def test_requests_of_a_batch_share_their_roots(run: Run) -> None:
    first, second = (predicate_of(run, each) for each in erase(run, Request(2), Request(3, 1)))
    for name in ("data_root_after", "data_root_before", "data_root_mac", "data_root_mac_before"):
        assert first[name] == second[name] is not None
    assert first["data_root_after"] != first["data_root_before"]


def test_sample_of_a_client_that_leaves_in_the_same_batch_is_absent_with_it(run: Run) -> None:
    targets = [Request(3), Request(3, 1)]
    requests = erase(run, *targets)
    predicate = predicate_of(run, requests[1])
    assert predicate["absence"]["sample"] is None
    assert predicate["presence"]["sample"] is None, "what else the client had is not known any more"
    for target, request in zip(targets, requests, strict=True):
        found = offline(run, run.signed_receipt(request), target, request)
        assert (found.absence_shown, found.presence_shown, found.opened) == (True, True, True)


def test_emptied_client_is_absent_from_the_tree(run: Run) -> None:
    targets = [Request(SMALLEST, sample) for sample in DATA[SMALLEST]]
    requests = erase(run, *targets)
    for target, request in zip(targets, requests, strict=True):
        envelope = run.signed_receipt(request)
        predicate = statement_of(envelope)["predicate"]
        assert predicate["absence"]["sample"] is None
        assert predicate["presence"]["sample"] is not None
        assert offline(run, envelope, target, request).opened


def test_samples_erased_one_after_the_other_are_each_proven_in_their_time(run: Run) -> None:
    targets = [Request(SMALLEST, sample) for sample in DATA[SMALLEST]]
    archived = []
    for target in targets:
        (request,) = erase(run, target)
        archived.append((target, request, run.signed_receipt(request)))
    roots = [statement_of(envelope)["predicate"] for _, _, envelope in archived]
    for earlier, later in pairwise(roots):
        assert earlier["data_root_after"] == later["data_root_before"]
    for target, request, envelope in archived:
        assert offline(run, envelope, target, request).absence_shown
        assert with_run(run, envelope).ok, "superseded: the run compares MACs"


def test_next_change_of_the_data_supersedes_a_proof(run: Run) -> None:
    """Only MACs of it stay: neither its label, nor a value, nor its root is in any byte of the record."""
    (request,) = erase(run, Request(3, 1))
    before = run.signed_receipt(request)
    predicate = statement_of(before)["predicate"]
    with run_directory.reading(run.path) as found:
        ((_, _, leaves),) = found.record.batches.standing()
    gone = [*leaves.client, *(leaves.sample or ())]
    assert predicate["target"] == {"client": gone[0].hex(), "sample": gone[2].hex()}
    erase(run, Request(4, 0))
    record = (run.path / RECORD).read_bytes()
    for part in (gone[1], gone[2], gone[3], bytes.fromhex(predicate["data_root_after"])):
        assert part not in record
        assert part.hex().encode() not in record
    late = predicate_of(run, request)
    assert late["superseded"]
    assert {late[name] for name in ("target", "absence", "presence", "data_root_after", "data_root_before")} == {None}
    assert (late["data_root_mac"], late["data_root_mac_before"]) == (
        predicate["data_root_mac"], predicate["data_root_mac_before"],
    )  # fmt: skip
    assert offline(run, before, Request(3, 1), request).absence_shown, "the archived one still proves it"
    with pytest.raises(ReceiptRefused, match="superseded"):
        offline(run, run.signed_receipt(request), Request(3, 1), request)


def test_training_on_supersedes_nothing(tmp_path: Path) -> None:
    run = opened(tmp_path / "run")
    run.train(3)
    (request,) = erase(run, Request(3, 1))
    before = run.signed_receipt(request)
    run.train()
    assert run.signed_receipt(request) == before


def test_addition_supersedes_a_proof(tmp_path: Path) -> None:
    run = opened(tmp_path / "run", without=[Request(4, 6)])
    run.train(2)
    (request,) = erase(run, Request(3, 1))
    archived = run.signed_receipt(request)
    run.add(Request(4, 6), basis="exogenous")
    assert predicate_of(run, request)["absence"] is None
    assert with_run(run, archived).ok


def test_sample_erased_again_after_it_came_back_is_proven_again(run: Run) -> None:
    (first,) = erase(run, Request(3, 1))
    archived = run.signed_receipt(first)
    run.add(Request(3, 1), returning=True, basis="exogenous")
    (second,) = erase(run, Request(3, 1))
    assert first != second
    again = run.signed_receipt(second)
    one, other = statement_of(archived)["predicate"], statement_of(again)["predicate"]
    assert one["target"] == other["target"], "an id has one label"
    assert one["data_root_after"] == other["data_root_after"], "the data are the same again"
    for request, envelope in ((first, archived), (second, again)):
        assert offline(run, envelope, Request(3, 1), request).opened
        assert with_run(run, envelope).ok


def test_new_seeds_change_the_root_and_no_label(run: Run, made: Path, tmp_path: Path) -> None:
    """Every commitment is another one. So the data before cannot be proven, and the receipt does not."""
    (request,) = erase(run, Request(3, 1), new_seed=True)
    envelope = run.signed_receipt(request)
    found = offline(run, envelope, Request(3, 1), request)
    assert (found.absence_shown, found.presence_shown, found.opened) == (True, None, True)
    predicate = statement_of(envelope)["predicate"]
    assert predicate["data_root_before"] is predicate["presence"] is None
    assert predicate["data_root_mac_before"] is not None
    assert with_run(run, envelope).ok
    old = opened(Path(shutil.copytree(made, tmp_path / "old")))
    other = predicate_of(old, *erase(old, Request(3, 1)))
    assert other["target"] == predicate["target"]
    assert other["data_root_after"] != predicate["data_root_after"]


def test_new_seeds_alone_supersede_a_proof(run: Run) -> None:
    (request,) = erase(run, Request(3, 1))
    run.forget(new_seed=True)
    assert predicate_of(run, request)["superseded"]


def test_request_that_joins_a_recomputation_is_proven_with_it(run: Run) -> None:
    """Two batches, one after the other, with receipts at the end of both: each has the data before itself."""
    other = opened(run.path)
    joined: list[str] = []

    def hand_in(_round: int) -> None:
        if not joined:
            joined.append(other.forget(Request(3, 1), basis="exogenous", defer=True)[0].id)

    (first,) = [receipt.id for receipt in run.forget(Request(2), basis="exogenous", on_round=hand_in)]
    assert joined, "a round was recomputed"
    one, two = predicate_of(run, first), predicate_of(run, joined[0])
    assert one["data_root_after"] == two["data_root_after"] is not None
    assert one["data_root_before"] != two["data_root_before"]
    for target, request in ((Request(2), first), (Request(3, 1), joined[0])):
        found = offline(run, run.signed_receipt(request), target, request)
        assert (found.absence_shown, found.presence_shown) == (True, True)
        assert with_run(run, run.signed_receipt(request)).ok


def test_last_client_leaves_an_empty_tree(run: Run) -> None:
    targets = [Request(client) for client in DATA]
    for target, request in zip(targets, erase(run, *targets), strict=True):
        envelope = run.signed_receipt(request)
        assert statement_of(envelope)["predicate"]["absence"]["client"]["bucket"] == []
        assert offline(run, envelope, target, request).absence_shown


# Forgeries by a holder of the key


def test_proof_about_another_target_is_noticed_by_the_run(run: Run) -> None:
    """Any label that was never there is absent, so the proof itself is sound: only the record knows the target."""
    (request,) = erase(run, Request(3))
    envelope = run.signed_receipt(request)
    erase(run, Request(4, 0))
    forged = statement_of(envelope)
    predicate = forged["predicate"]
    label = bytes.fromhex(predicate["target"]["client"])
    predicate["target"]["client"] = (label[:-1] + bytes([label[-1] ^ 1])).hex()
    predicate["data_root_before"] = predicate["presence"] = None
    forged_envelope = seal(forged, signing_key(run.path))
    assert read_receipt(file_of(run, forged_envelope), run.path / PUBLIC_KEY).absence_shown
    found = with_run(run, forged_envelope)
    assert "the receipt is about another target than this request" in found.problems


@pytest.mark.parametrize("superseded", [False, True])
def test_proof_from_other_data_is_noticed_by_the_run(run: Run, superseded: bool) -> None:
    """The tree of a made-up run is consistent in itself: only its root gives it away."""
    (request,) = erase(run, Request(3))
    forged = statement_of(run.signed_receipt(request))
    predicate = forged["predicate"]
    label = bytes.fromhex(predicate["target"]["client"])
    empty = TreePath((), ())
    predicate["absence"] = {"client": {"siblings": [], "bucket": []}, "sample": None}
    predicate["data_root_after"] = empty.root(label).hex()
    if superseded:
        erase(run, Request(4, 0))
    envelope = seal(forged, signing_key(run.path))
    assert read_receipt(file_of(run, envelope), run.path / PUBLIC_KEY).absence_shown
    found = with_run(run, envelope)
    words = "root of the data after this request is another" if superseded else "another root of the data after"
    assert any(words in problem for problem in found.problems), found.problems


def test_receipt_without_its_proof_is_noticed_by_the_run(run: Run) -> None:
    (request,) = erase(run, Request(3))
    forged = copy.deepcopy(statement_of(run.signed_receipt(request)))
    for name in ("target", "absence", "data_root_before", "presence"):
        forged["predicate"][name] = None
    found = with_run(run, seal(forged, signing_key(run.path)))
    assert "the run's record has another proof of absence for this request" in found.problems


def note(run: Run, leaves: TargetLeaves) -> None:
    """Put other leaves into the record, for the only batch whose proofs stand."""
    with run_directory.writing(run.path) as found, found.record.database.transaction():
        ((request, number, _),) = found.record.batches.standing()
        batch = found.record.book.receipt(request).batch_id or ""
        found.record.vault.put(LEAVES, batch, encode(number, [leaves]))


def test_noted_leaves_that_are_in_the_data_are_damage(run: Run) -> None:
    """The record says that a client is gone which the books hold: no proof is made from that."""
    (request,) = erase(run, Request(3))
    with run_directory.reading(run.path) as found:
        leaf = next(iter(found.clients.books.client_leaves(found.clients.books.part_of(4)).values()))
    note(run, TargetLeaves(leaf, None))
    with pytest.raises(RunDamaged, match="holds an erased target"):
        run.signed_receipt(request)


def test_altered_leaves_are_damage(run: Run) -> None:
    (request,) = erase(run, Request(3))
    with run_directory.reading(run.path) as found:
        ((_, _, leaves),) = found.record.batches.standing()
    label, value = leaves.client
    note(run, TargetLeaves((label, bytes(len(value))), None))
    with pytest.raises(RunDamaged, match="does not fit the data"):
        run.signed_receipt(request)


# Openings


def test_after_forget_record_only_earlier_openings_open_a_receipt(run: Run) -> None:
    (request,) = erase(run, Request(3, 1))
    archived = file_of(run, run.signed_receipt(request))
    opening = file_of(run, open_target(run.path, request, Request(3, 1)).as_dict(), "opening.json")
    run.forget_record()
    with pytest.raises(InvalidInput, match="no longer knows the target of request") as refusal:
        open_target(run.path, request, Request(3, 1))
    assert "still opens the archived receipt" in refusal.value.hint
    assert read_receipt(archived, run.path / PUBLIC_KEY, opening).opened
    late = run.signed_receipt(request)
    predicate = statement_of(late)["predicate"]
    assert predicate["target"] is predicate["absence"] is predicate["presence"] is None
    assert predicate["data_root_after"] is not None
    with pytest.raises(ReceiptRefused, match="had forgotten what the request was for"):
        read_receipt(file_of(run, late), run.path / PUBLIC_KEY, opening)
    assert with_run(run, late).ok
    assert run.check_receipt(read_receipt(archived, run.path / PUBLIC_KEY), sample_rounds=0).ok


def test_request_without_an_erasure_has_no_opening(run: Run) -> None:
    (request,) = [receipt.id for receipt in run.forget(Request(2), basis="exogenous", defer=True)]
    with pytest.raises(InvalidInput, match="no receipt yet"):
        open_target(run.path, request, Request(2))
    run.cancel(request)
    with pytest.raises(InvalidInput, match="nothing was erased"):
        open_target(run.path, request, Request(2))


def test_check_says_what_it_does_not_show(run: Run) -> None:
    (request,) = erase(run, Request(3))
    envelope = run.signed_receipt(request)
    plain = read_receipt(file_of(run, envelope), run.path / PUBLIC_KEY)
    assert plain.not_shown == [check.OFFLINE, check.UNOPENED, check.LABELS, check.OTHER_ID]
    assert offline(run, envelope, Request(3), request).not_shown == [check.OFFLINE, check.LABELS, check.OTHER_ID]
    assert with_run(run, envelope).not_shown == [check.UNOPENED, check.OTHER_ID]
    run.forget_record()
    assert read_receipt(file_of(run, run.signed_receipt(request)), run.path / PUBLIC_KEY).not_shown == [
        check.SIGNATURE_ONLY, check.OTHER_ID,
    ]  # fmt: skip


# Series


def test_archive_of_a_run_is_a_series_and_that_of_a_rewritten_record_is_not(run: Run, tmp_path: Path) -> None:
    rolled_back = opened(Path(shutil.copytree(run.path, tmp_path / "rolled back")))
    files, kept = [], []
    for number, target in enumerate((Request(3), Request(4, 0), Request(1, 2))):
        (request,) = erase(run, target)
        files.append(file_of(run, run.signed_receipt(request), f"{number}.json"))
    assert check_series(files, [run.path / PUBLIC_KEY]).ok
    skipped = [files[0], files[2]]
    assert "not shown" in check_series(skipped, [run.path / PUBLIC_KEY]).problems[0]
    places = [read_place(file, [run.path / PUBLIC_KEY]) for file in skipped]
    with run_directory.reading(run.path) as found:
        links = file_of(run, make_links(found, places), "links.json")
    assert check_series(skipped, [run.path / PUBLIC_KEY], [links]).links_used == 1
    for target in (Request(4, 0), Request(1, 2)):
        (request,) = erase(rolled_back, target)
        kept.append(file_of(run, rolled_back.signed_receipt(request), f"other {target.client}.json"))
    keys = [run.path / PUBLIC_KEY, rolled_back.path / PUBLIC_KEY]
    for other in kept:
        assert any("rewritten" in problem for problem in check_series([files[0], other], keys).problems)
    with run_directory.reading(rolled_back.path) as found, pytest.raises(ReceiptRefused, match="was rewritten"):
        make_links(found, places)


# Exports


def test_exports_before_an_erasure_are_named_with_their_macs(run: Run, tmp_path: Path) -> None:
    run.export(tmp_path / "early.safetensors")
    run.export(tmp_path / "again.safetensors")
    (request,) = erase(run, Request(3))
    run.export(tmp_path / "late.safetensors")
    full, public = predicate_of(run, request), predicate_of(run, request, public=True)
    exports = full["out_of_reach"]["exports"]
    assert [set(each) for each in exports] == [{"time", "mac"}] * 2
    assert exports[0]["mac"] == exports[1]["mac"], "the same file"
    assert public["out_of_reach"]["exports"] == [{"time": exports[0]["time"][:10]}], "equal MACs would tell"
    assert with_run(run, run.signed_receipt(request)).ok
    assert run.verify().ok


def test_export_of_a_run_that_cannot_be_written_is_not_noted(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> Any:
        raise StorageFailed(f"cannot write {path}")

    monkeypatch.setattr(run_directory, "writing", refuse)
    assert not exporting.export_run(run.path, tmp_path / "model.pt").noted
    assert (tmp_path / "model.pt").exists()
    monkeypatch.undo()
    assert exporting.export_run(run.path, tmp_path / "model.pt").noted


# Another environment


def elsewhere(monkeypatch: pytest.MonkeyPatch, by: float) -> None:
    """This machine becomes another one, whose local models differ from those of the run by a relative amount."""
    here, real = dict(fedforget.training.environment.environment()), Engine.learner
    monkeypatch.setattr(fedforget.training.environment, "environment", lambda: {**here, "processor": "another"})

    def nudged(self: Engine) -> object:
        learner = real(self)
        train = learner.train
        learner.train = lambda work: Trained(  # type: ignore[method-assign]
            {name: tensor * (1 + by) for name, tensor in train(work).model.items()}, None
        )
        return learner

    monkeypatch.setattr(Engine, "learner", nudged)


@pytest.mark.parametrize(("by", "near"), [(1e-6, True), (0.5, False)])
def test_receipt_is_compared_within_the_tolerance_in_another_environment(
    run: Run, monkeypatch: pytest.MonkeyPatch, by: float, near: bool
) -> None:
    requests = erase(run, Request(3), Request(4))
    envelope = run.signed_receipt(requests[0])
    assert statement_of(envelope)["predicate"]["recomputed_rounds"], "something was recomputed"
    elsewhere(monkeypatch, by)
    found = run.check_receipt(read_receipt(file_of(run, envelope), run.path / PUBLIC_KEY))
    assert (found.bitwise_equal, found.within_tolerance, found.ok) == (False, near, near)
    assert found.problems
