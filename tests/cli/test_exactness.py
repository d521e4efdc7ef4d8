"""Through the command line: what forgot equals, byte for byte, what never had the data."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from tests.cli.commandline import (
    ROUNDS,
    WORLD,
    call,
    copy,
    everything_of,
    function_of,
    good,
    good_json,
    refused,
    requests_file,
    samples_of,
    state,
    train,
)

Requests = list[tuple[int, int | None]]
VARIANTS: dict[str, tuple[str, ...]] = {
    "keep every": (),
    "keep 3": ("--keep", "3"),
    "keep ends": ("--keep", "ends"),
    "fedadam": ("--server-optimizer", "fedadam"),
    "momentum": ("--momentum", "0.9", "--weight-decay", "0.001", "--prox", "0.01"),
    "fedadam, keep 2": ("--server-optimizer", "fedadam", "--keep", "2", "--momentum", "0.5"),
}
SLOW = pytest.mark.slow
OTHERS = [variant for variant in VARIANTS if variant != "keep 3"]


def forget(run: Path, *requests: tuple[int, int | None]) -> list[dict[str, object]]:
    """One command per request."""
    receipts = []
    for client, sample in requests:
        more = () if sample is None else ("--sample", str(sample))
        receipts += good_json("forget", run, "--client", str(client), *more)["receipts"]
    return receipts


def forget_together(run: Path, requests: Requests, tmp_path: Path) -> None:
    good("forget", run, "--batch", requests_file(tmp_path / "batch.jsonl", requests))


def require_equal(run: Path, never_had: Path) -> None:
    assert state(run) == state(never_had)
    assert function_of(run) == function_of(never_had)


def never_had(tmp_path: Path, requests: Requests, *more: str) -> Path:
    file = requests_file(tmp_path / "without.jsonl", requests)
    train(tmp_path / "never-had", "--without", file, *more)
    return tmp_path / "never-had"


def some_requests(run: Path) -> Requests:
    """Three samples (of two clients) and a client."""
    return [(0, samples_of(run, 0)[1]), (0, samples_of(run, 0)[7]), (2, samples_of(run, 2)[0]), (4, None)]


@pytest.mark.parametrize("variant", ["keep 3", *(pytest.param(v, marks=SLOW) for v in OTHERS)])
def test_requests_one_by_one_equal_training_without_the_data(tmp_path: Path, variant: str) -> None:
    train(tmp_path / "run", *VARIANTS[variant])
    requests = some_requests(tmp_path / "run")
    forget(tmp_path / "run", *requests)
    require_equal(tmp_path / "run", never_had(tmp_path, requests, *VARIANTS[variant]))
    assert good_json("verify", tmp_path / "run")["ok"]


@pytest.mark.parametrize("variant", ["keep ends", *(pytest.param(v, marks=SLOW) for v in ("keep every", "fedadam"))])
def test_batch_equals_training_without_the_data(tmp_path: Path, variant: str) -> None:
    train(tmp_path / "run", *VARIANTS[variant])
    requests = some_requests(tmp_path / "run")
    forget_together(tmp_path / "run", requests, tmp_path)
    require_equal(tmp_path / "run", never_had(tmp_path, requests, *VARIANTS[variant]))


@pytest.mark.parametrize(
    ("variant", "early"),
    [
        ("keep 3", 4),
        ("fedadam, keep 2", 1),
        *(pytest.param(variant, early, marks=SLOW) for variant in VARIANTS for early in (0, 1, 2, 3, 4)),
    ],
)
def test_forgetting_early_then_resuming_is_exact(tmp_path: Path, variant: str, early: int) -> None:
    run = tmp_path / "run"
    train(run, "--until-round", str(early), *VARIANTS[variant])
    requests = some_requests(run)
    forget(run, *requests[1:])
    assert good_json("status", run)["rounds_done"] == early
    good("train", run)
    forget(run, requests[0])
    require_equal(run, never_had(tmp_path, requests, *VARIANTS[variant]))


@pytest.mark.slow
def test_order_and_grouping_of_requests_do_not_change_the_result(trained_once: Path, tmp_path: Path) -> None:
    requests = some_requests(trained_once)[1:]
    other = never_had(tmp_path, requests)
    for number, order in enumerate(itertools.permutations(requests)):
        run = copy(trained_once, tmp_path / f"order{number}")
        if number % 2:
            forget(run, *order)
        else:
            forget_together(run, list(order[:2]), tmp_path)
            forget(run, order[2])
        require_equal(run, other)


@pytest.mark.parametrize("together", [False, pytest.param(True, marks=SLOW)])
def test_emptying_a_client_is_erasing_it(trained: Path, tmp_path: Path, together: bool) -> None:
    smallest = min(good_json("clients", trained)["clients"], key=lambda row: row["samples"])["client"]
    requests: Requests = [(smallest, sample) for sample in samples_of(trained, smallest)]
    if together:
        forget_together(trained, requests, tmp_path)
    else:
        forget_together(trained, requests[1:], tmp_path)
        (receipt,) = forget(trained, requests[0])
        assert receipt["level"] == "sample"
    assert smallest not in [row["client"] for row in good_json("clients", trained)["clients"]]
    require_equal(trained, never_had(tmp_path, [(smallest, None)]))
    again = forget(trained, (smallest, None))
    assert again[0]["state"] == "purged", "the client went with its last sample"


def test_a_client_and_its_sample_in_one_batch(trained: Path, tmp_path: Path) -> None:
    requests: Requests = [(2, samples_of(trained, 2)[0]), (2, None)]
    forget_together(trained, requests, tmp_path)
    require_equal(trained, never_had(tmp_path, [(2, None)]))


def test_repeated_request_returns_the_same_receipt(trained: Path) -> None:
    sample = samples_of(trained, 0)[0]
    first = forget(trained, (0, sample))
    before = function_of(trained)
    assert forget(trained, (0, sample)) == first
    client = forget(trained, (3, None))
    assert forget(trained, (3, None)) == client
    (inside,) = forget(trained, (3, 17))
    assert inside["id"] == client[0]["id"], "a sample of an erased client went with it"
    assert good_json("status", trained)["requests"] == 2
    assert function_of(trained) != before
    assert forget(trained, (0, sample))[0]["id"] == first[0]["id"]


def test_old_and_new_requests_in_one_batch(trained: Path, tmp_path: Path) -> None:
    (old,) = forget(trained, (3, None))
    file = requests_file(tmp_path / "r", [(3, None), (4, None), (3, 17)])
    receipts = good_json("forget", trained, "--batch", file)["receipts"]
    assert [receipt["id"] for receipt in receipts][::2] == [old["id"], old["id"]]
    assert receipts[1]["id"] != old["id"]
    require_equal(trained, never_had(tmp_path, [(3, None), (4, None)]))


def test_a_batch_is_all_or_nothing(trained: Path, tmp_path: Path) -> None:
    before = everything_of(trained)
    file = requests_file(tmp_path / "r", [(3, None), (99, None)])
    error = refused(3, "unknown-target", "forget", trained, "--batch", file)
    assert "client 99" in error["message"]
    assert everything_of(trained) == before


def test_erasing_everyone_withdraws_the_model(trained: Path, tmp_path: Path) -> None:
    for client in range(5):
        good("forget", trained, "--client", str(client))
    text = good("forget", trained, "--client", "5")
    assert "withdrawn" in text.out
    told = good_json("status", trained)
    assert told["withdrawn"] is True
    assert told["model_digest"] is None
    assert (told["clients"], told["samples"], told["rounds_done"], told["requests"]) == (0, 0, 0, 6)
    assert "withdrawn" in good("status", trained).out
    before = everything_of(trained)
    refused(11, "model-withdrawn", "export", trained, tmp_path / "model.pt")
    assert not (tmp_path / "model.pt").exists()
    assert "new run" in refused(11, "model-withdrawn", "train", trained)["hint"]
    assert "keeping" not in call("train", trained).err, "there is nothing to train"
    assert len(list((trained / "models").iterdir())) == 1, "only the initial model, which no data touched"
    assert good_json("verify", trained)["ok"]
    assert good_json("clients", trained)["clients"] == []
    assert good("clients", trained).code == 0
    assert good_json("doctor", trained)["ok"]
    after = everything_of(trained)
    own = ("record.db", "seals")
    assert {name: after[name] for name in after if name not in own} == {
        name: before[name] for name in before if name not in own
    }
    (receipt,) = forget(trained, (2, None))
    assert receipt["state"] == "purged"


@pytest.mark.slow
def test_erasing_all_clients_together_or_one_by_one_gives_the_same_state(trained: Path, tmp_path: Path) -> None:
    other = copy(trained, tmp_path / "other")
    forget(trained, *((client, None) for client in range(6)))
    forget_together(other, [(client, None) for client in range(6)], tmp_path)
    require_equal(trained, other)


# Seeds and guarantees


def guarantees(run: Path) -> list[str]:
    return [receipt["guarantee"] for receipt in good_json("status", run)["receipts"]]


@pytest.fixture
def system_seeded(tmp_path: Path) -> Path:
    good("train", *WORLD[:-2], "--rounds", str(ROUNDS), "--out", tmp_path / "system")
    return tmp_path / "system"


def test_given_seed_guarantees_path_only(trained: Path) -> None:
    (receipt,) = good_json("forget", trained, "--client", "1", "--basis", "exogenous")["receipts"]
    assert (receipt["guarantee"], receipt["basis"]) == ("path", "exogenous")
    assert good_json("status", trained)["tainted"] is False


def test_exogenous_request_keeps_equality_in_law(system_seeded: Path) -> None:
    good("forget", system_seeded, "--client", "1", "--basis", "exogenous")
    good("forget", system_seeded, "--client", "2", "--basis", "exogenous")
    assert guarantees(system_seeded) == ["law-and-path", "law-and-path"]
    assert good_json("status", system_seeded)["tainted"] is False


@pytest.mark.parametrize("basis", [pytest.param(("--basis", "model-informed"), marks=SLOW), ()])
def test_request_of_unknown_basis_taints_the_seeds(system_seeded: Path, basis: tuple[str, ...]) -> None:
    good("forget", system_seeded, "--client", "1", *basis)
    assert good_json("status", system_seeded)["tainted"] is True
    good("forget", system_seeded, "--client", "2", "--basis", "exogenous")
    assert guarantees(system_seeded) == ["path", "path"]
    (receipt,) = good_json("forget", system_seeded, "--client", "3", "--basis", "exogenous", "--new-seed")["receipts"]
    assert receipt["guarantee"] == "law-and-path"
    assert good_json("status", system_seeded)["tainted"] is False
    good("forget", system_seeded, "--client", "4", "--basis", "exogenous")
    assert guarantees(system_seeded)[-1] == "law-and-path"
    assert good_json("verify", system_seeded)["ok"]


@pytest.mark.parametrize("variant", ["fedadam, keep 2", pytest.param("keep ends", marks=SLOW)])
def test_new_seeds_retrain_and_verify(tmp_path: Path, variant: str) -> None:
    run = tmp_path / "run"
    before = train(run, *VARIANTS[variant])
    plan = (run / "plan.toml").read_text()
    (receipt,) = good_json("forget", run, "--client", "3", "--new-seed", "--basis", "model-informed")["receipts"]
    assert receipt["recomputed_steps"] == 2 * ROUNDS
    after = good_json("status", run)
    assert after["model_digest"] != before["model_digest"]
    assert (after["seed_origin"], after["tainted"], after["rounds_done"]) == ("system", False, ROUNDS)
    assert good_json("verify", run)["ok"]
    changed = set((run / "plan.toml").read_text().splitlines()) - set(plan.splitlines())
    assert len(changed) == 1, "only the commitment is new"
    assert good_json("train", run)["rounds_done"] == ROUNDS


def test_new_seeds_without_a_request(trained: Path) -> None:
    before = good_json("status", trained)["model_digest"]
    assert good_json("forget", trained, "--new-seed")["receipts"] == []
    status = good_json("status", trained)
    assert status["model_digest"] != before
    assert (status["requests"], status["seed_origin"], status["pending"]) == (0, "system", False)
    assert good_json("verify", trained)["ok"]


def test_new_seeds_with_an_already_completed_request(trained: Path) -> None:
    (first,) = forget(trained, (3, None))
    before = good_json("status", trained)["model_digest"]
    (again,) = good_json("forget", trained, "--client", "3", "--new-seed")["receipts"]
    assert again["id"] == first["id"]
    assert good_json("status", trained)["model_digest"] != before
    assert good_json("verify", trained)["ok"]


def test_new_seeds_in_the_middle_of_training(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(run, "--until-round", "2")
    good("forget", run, "--client", "1", "--new-seed")
    assert good_json("status", run)["rounds_done"] == 2
    assert good_json("train", run)["rounds_done"] == ROUNDS
    assert good_json("verify", run)["ok"]
    assert refused(4, "plan-refused", "train", *WORLD, "--rounds", str(ROUNDS), "--out", run)["message"]


def test_superseded_digests_leave_the_receipts(trained: Path) -> None:
    digests = []
    for client in range(6):
        receipts = good_json("forget", trained, "--client", str(client))["receipts"]
        digests.append(receipts[0]["model_digest"])
    shown = [receipt["model_digest"] for receipt in good_json("status", trained)["receipts"]]
    assert shown[-1] is digests[-1] is None, "no client is left"
    gone = {digest for digest in digests if digest not in shown} - {None}
    assert gone
    record = (trained / "record.db").read_bytes()
    assert not [digest for digest in gone if digest.encode() in record]


def test_receipts_survive_as_json(trained: Path) -> None:
    forget(trained, (1, None))
    told = good_json("status", trained)
    assert json.loads(json.dumps(told)) == told
