"""``fedforget plan``: its figures are the law's, its answers are complete, its refusals say what to do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedforget.algorithm.contents import one_by_one
from fedforget.algorithm.ids import IdSet
from fedforget.algorithm.plan import Plan, ServerOptimizer
from fedforget.algorithm.seeds import SeedSource
from fedforget.cli.plan_text import size
from fedforget.cli.planning import DIGITS_MLP_BYTES
from fedforget.disk.database import Database
from fedforget.disk.pages import PAGE
from fedforget.planner.costs import client_bound, forgetting_cost, sample_bound
from fedforget.planner.round_law import Withdrawal
from fedforget.planner.storage import (
    CLIENT_ENTRY,
    SAMPLE_ENTRY,
    client_bytes,
    learning_traffic,
    sample_forgetting_traffic,
    state_bytes,
)
from fedforget.planner.windows import Requests, in_windows
from fedforget.store import uses
from fedforget.store.books.books import Books
from fedforget.store.names import BOOKS, USES
from fedforget.store.uses import Uses
from tests.cli.commandline import PLAN, ROUNDS, call, good, good_json, models_in, refused, samples_of, train
from tests.helpers import scratch

EMPTY_FILES = 4 * PAGE + 80 * len(BOOKS)  # a schema and three tables, and headers
NUMBERS = ("--clients", "300", "--samples", "200")
KNOWN = (*NUMBERS, "--clients-per-round", "5", "--batch-size", "10", "--rounds", "30", "--local-steps", "10")
WORLD = {"clients": 300, "clients_per_round": 5, "batch_size": 10, "local_steps": 10, "rounds": 30}
FIND = (
    "--find", *NUMBERS, "--steps", "300", "--min-samples-per-step", "50", "--max-local-steps", "10",
    "--min-clients-per-round", "4",
)  # fmt: skip


def numbers_in(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for held in value.values():
            yield from numbers_in(held)
    elif isinstance(value, list):
        for held in value:
            yield from numbers_in(held)
    elif isinstance(value, (int, float)):
        yield value


# The figures


def test_the_figures_are_those_of_the_law() -> None:
    told = good_json("plan", *KNOWN)
    assert told["rho_s"] == float(sample_bound(200, **WORLD)) == 0.25
    assert told["rho_c"] == float(client_bound(clients=300, clients_per_round=5, rounds=30)) == 0.5
    for level, lost in (("sample", 1), ("client", None)):
        cost = forgetting_cost([Withdrawal(200, lost)], **WORLD)
        assert told[level]["probability"] == pytest.approx(cost.probability, rel=1e-14)
        assert told[level]["expected_steps"] == pytest.approx(cost.expected_steps, rel=1e-14)
        from_use = told[level]["expected_steps_from_first_use"]
        assert from_use == pytest.approx(cost.expected_steps_from_first_use, rel=1e-14)
        assert told[level]["expected_share"] == pytest.approx(cost.expected_steps / 300, rel=1e-14)
    assert (told["sample"]["union_bound"], told["client"]["union_bound"]) == (0.25, 0.5)
    assert all(number >= 0 for number in numbers_in(told))


def test_storage_traffic_and_batching() -> None:
    told = good_json("plan", *KNOWN, "--model-bytes", "1000", "--keep", "10", "--window", "3", "--sample-share", "1")
    plan = Plan(5, 10, 10, 30, keep=10)
    storage, traffic = told["storage"], told["traffic"]
    assert [(way["keep"], way["models"]) for way in storage["ways"]] == [("every", 31), (10, 4), ("ends", 2)]
    assert storage["server_bytes"] == storage["ways"][1]["server_bytes"] == 4 * 1000 + 300 * 48
    assert storage["client_bytes"] == client_bytes(200)
    assert traffic["learning"]["bytes"] == learning_traffic(plan, 300, 1000).bytes
    assert traffic["retraining"]["client"]["bytes"] == learning_traffic(plan, 299, 1000).bytes
    forgetting = sample_forgetting_traffic(plan, 300, 200, 1000)
    assert traffic["forgetting"]["sample"]["bytes"] == pytest.approx(forgetting.bytes)
    assert traffic["forgetting"]["sample"]["rounds_replayed"] > traffic["forgetting"]["sample"]["rounds_recomputed"]
    window = in_windows(Requests(1.0, 1.0), 3.0, {200: 300}, plan)
    assert [w["days"] for w in told["batching"]["windows"]] == [3.0]
    assert told["batching"]["windows"][0]["saving"] == window.saving


def test_clients_of_different_sizes(trained_once: Path) -> None:
    told = good_json("plan", *PLAN)
    sizes = [len(samples_of(trained_once, client)) for client in range(6)]
    world = {"clients": 6, "clients_per_round": 2, "batch_size": 3, "local_steps": 2, "rounds": ROUNDS}
    steps = sum(n * forgetting_cost([Withdrawal(n, 1)], **world).expected_steps for n in sizes) / sum(sizes)
    assert told["sample"]["expected_steps"] == pytest.approx(steps, rel=1e-12), "of a sample like any other"
    rounds = told["traffic"]["forgetting"]["sample"]["rounds_recomputed"]
    assert 2 * rounds == pytest.approx(steps, rel=1e-12)
    assert told["sample"]["probability"] == pytest.approx(
        sum(n * forgetting_cost([Withdrawal(n, 1)], **world).probability for n in sizes) / sum(sizes), rel=1e-12
    )
    spread = told["samples_per_client"]
    assert spread["smallest"] < spread["mean"] < spread["largest"]
    assert told["sample"]["probability"] < told["worst_sample"]["probability"] <= told["client"]["probability"]
    assert told["rho_s"] == told["worst_sample"]["union_bound"]
    text = good("plan", *PLAN).out
    assert f"sample of the smallest client (N = {spread['smallest']})" in text
    mean = told["batch_size"] * told["clients_per_round"] * told["steps"] / told["samples"]
    assert f"of the smallest client; {mean:.4g} on average over the samples" in text


def test_storage_is_that_of_a_real_run(trained_once: Path, tmp_path: Path) -> None:
    told = good_json("plan", *PLAN)
    storage, header = told["storage"], 400  # of a safetensors file, at most
    assert models_in(trained_once) == storage["ways"][0]["models"] == ROUNDS + 1
    for model in (trained_once / "models").iterdir():
        assert 0 <= model.stat().st_size - DIGITS_MLP_BYTES <= header
    sizes = [len(samples_of(trained_once, client)) for client in range(6)]
    books = sum((trained_once / name).stat().st_size for name in BOOKS)
    assert books == 80 * len(BOOKS) + sum(CLIENT_ENTRY + SAMPLE_ENTRY * size for size in sizes)
    entries = sum(map(client_bytes, sizes))
    real = sum((trained_once / name).stat().st_size for name in (USES, *BOOKS))
    assert books <= real <= 1.5 * entries + EMPTY_FILES
    train(tmp_path / "adam", "--server-optimizer", "fedadam")
    largest = max(path.stat().st_size for path in (tmp_path / "adam" / "models").iterdir())
    kept = state_bytes(Plan(2, 3, 2, ROUNDS, server=ServerOptimizer("fedadam")), DIGITS_MLP_BYTES)
    assert 0 <= largest - kept <= 3 * header


def test_storage_of_clients_is_that_of_real_files() -> None:
    """Of files that grow, so that the pages of empty ones do not count."""

    def real(clients: int, samples: int) -> int:
        with scratch() as directory:
            seeds, everyone = SeedSource("storage"), range(clients)
            books = Books(directory, seeds.tree_key())
            books.create(
                {c: seeds.client(c) for c in everyone},
                one_by_one(lambda _: (IdSet(range(samples)), bytes(16 * samples))),
            )
            notes = Database(directory / USES, uses.SCHEMA, create=True)
            Uses(notes).note([(c, s, 100 + s) for c in everyone for s in range(samples)])
            Uses(notes).store_digest()
            notes.close_canonical()
            return sum((directory / name).stat().st_size for name in (USES, *BOOKS))

    assert real(0, 0) == EMPTY_FILES
    more_samples = real(60, 800) - real(60, 400)
    assert more_samples == pytest.approx(60 * (client_bytes(800) - client_bytes(400)), rel=0.1)
    more_clients = real(6000, 1) - real(3000, 1)
    assert more_clients == pytest.approx(3000 * client_bytes(1), rel=0.3)


def test_a_million_clients_at_once() -> None:
    began = time.monotonic()
    many = ("--clients", "1000000", "--samples", "200")
    good_json("plan", *many, *KNOWN[4:])
    found = good_json("plan", *many, "--find", *FIND[5:], "--max-rho-s", "0.5")
    assert found["clients_per_round"] == 4
    assert time.monotonic() - began < 2.0


# For people


def test_plan_text_has_six_sections_of_short_lines() -> None:
    text = good("plan", *KNOWN).out
    sections = [line.split(",")[0].split(":")[0] for line in text.splitlines() if line and not line.startswith(" ")]
    assert sections == ["plan", "forgetting", "several requests", "storage", "traffic", "batching"]
    assert all(len(line) <= 120 for line in text.splitlines())
    assert "every *" in text


def test_plan_notes_idle_workers() -> None:
    assert "K = 5 is not a multiple of 4 workers" in good("plan", *KNOWN, "--workers", "4").out
    assert "K = 4 or 8" in good("plan", *KNOWN, "--workers", "4").out
    assert "3 of them would have nothing to do; K = 8" in good("plan", *KNOWN, "--workers", "8").out
    assert "workers" not in good("plan", *KNOWN, "--workers", "5").out
    told = good_json("plan", *KNOWN, "--workers", "4")["workers"]
    assert (told["count"], told["turns_per_round"], told["even"]) == (4, 2, False)
    few = ("--clients", "9", "--samples", "9", "--batch-size", "2", "--rounds", "3", "--local-steps", "2")
    for slots in ("5", "64"):
        told = good("plan", *few, "--workers", "64", "--clients-per-round", slots).out
        assert "only 9 clients: of 64 workers, 55 would have nothing to do" in told


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (19_240, "19.24 kB"), (5e9, "5 GB"), (1e22, "1e+04 EB")],
)
def test_size_is_shown_with_four_digits_and_unit(count: float, shown: str) -> None:
    assert size(count) == shown


# The length of training


def test_steps_give_what_is_missing() -> None:
    wanted = good_json("plan", *KNOWN)
    by_steps = (*KNOWN[:8], "--steps", "300")
    assert good_json("plan", *by_steps, "--rounds", "30") == wanted
    assert good_json("plan", *by_steps, "--local-steps", "10") == wanted
    assert good_json("plan", *KNOWN, "--steps", "300") == wanted
    assert "294 and 301" in refused(4, "plan-refused", "plan", *by_steps, "--local-steps", "7")["hint"]
    refused(4, "plan-refused", "plan", *by_steps)
    refused(4, "plan-refused", "plan", *KNOWN, "--steps", "299")
    for wrong in ("0", "-5"):
        refused(4, "plan-refused", "plan", *by_steps, "--local-steps", wrong)


# Finding a plan


def test_plan_find_prints_the_cheapest_plan_and_its_binding_limits() -> None:
    told = good_json("plan", *FIND, "--max-rho-c", "0.5")
    best = told["found"]["choices"][0]
    for name in ("clients_per_round", "batch_size", "local_steps", "rounds"):
        assert told[name] == best[name]
    assert (told["clients_per_round"], told["batch_size"], told["local_steps"], told["steps"]) == (4, 13, 10, 300)
    assert told["rho_c"] <= 0.5
    half = (told["sample"]["expected_steps"] + told["client"]["expected_steps"]) / 2
    assert best["expected_steps"] == pytest.approx(half, rel=1e-12)
    assert told["found"]["binding"] == [
        "--min-samples-per-step 50", "--min-clients-per-round 4", "--max-local-steps 10",
    ]  # fmt: skip
    text = good("plan", *FIND).out
    assert text.startswith("cheapest to forget from")
    assert "--max-local-steps 10" in text


def test_plan_find_uses_the_sample_share() -> None:
    told = good_json("plan", *FIND, "--sample-share", "1")
    best = told["found"]["choices"][0]
    assert best["expected_steps"] == pytest.approx(told["sample"]["expected_steps"], rel=1e-12)


def test_plan_find_with_fixed_local_steps_or_rounds() -> None:
    for length in (("--steps", "300", "--local-steps", "5"), ("--rounds", "60", "--local-steps", "5")):
        told = good_json("plan", "--find", *NUMBERS, *length, "--min-clients-per-round", "2", "--min-batch-size", "7")
        assert [choice["local_steps"] for choice in told["found"]["choices"]] == [5]
        assert (told["clients_per_round"], told["batch_size"], told["rounds"]) == (2, 7, 60)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--steps", "300", "--max-local-steps", "10"), "K = b = 1"),
        (("--steps", "300", "--max-local-steps", "10", "--min-clients-per-round", "3"), "K = b = 1"),
        (("--steps", "300", "--min-samples-per-step", "50"), "one long round"),
        (("--min-samples-per-step", "50", "--max-local-steps", "10"), "how long training is"),
        (("--min-samples-per-step", "50", "--rounds", "10"), "how long training is"),
        ((*FIND[5:], "--rho-s", "0.5"), "rho s is given"),
        ((*FIND[5:], "--batch-size", "5"), "batch size is given"),
        ((*FIND[5:], "--max-rho-s", "0.1"), "rho_s = 0.25 instead of 0.1"),
        ((*FIND[5:], "--max-rho-c", "0"), "rules out every plan"),
        ((*FIND[5:], "--min-batch-size", "500"), "larger than a client"),
        ((*FIND[5:], "--max-rounds", "7"), "divides 300"),
    ],
)
def test_plan_find_without_lower_bounds_is_refused(arguments: tuple[str, ...], named: str) -> None:
    assert named in refused(4, "plan-refused", "plan", "--find", *NUMBERS, *arguments)["message"]


def test_limits_need_find() -> None:
    assert "--find" in refused(3, "invalid-input", "plan", *KNOWN, "--max-rho-s", "0.5")["hint"]
    assert "--find" in refused(3, "invalid-input", "plan", *KNOWN, "--min-batch-size", "5")["hint"]


# The page


def commands_of(page: str) -> list[str]:
    lines = page.replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.startswith("    fedforget plan ") and "--plot" not in line]


def test_the_page_shows_what_the_command_prints() -> None:
    page = (Path(__file__).parents[2] / "docs" / "choosing-rho.md").read_text(encoding="utf-8")
    plain, find = commands_of(page)
    out = good(*plain.split()[1:]).out
    for title in ("forgetting", "several requests", "storage", "batching"):
        section = out.split(f"\n{title}", 1)[1].split("\n\n")[0].splitlines()[1:]
        shown = [line.strip() for line in section if "  " in line.strip()]
        assert len(shown) > 3
        assert [line for line in shown if line not in page] == []
    section = good(*find.split()[1:]).out.split("\n\n")[0].splitlines()
    assert [line for line in section if line.strip() not in page] == []


# The picture


def test_plan_plot_writes_svg_and_refuses_unknown_suffix(tmp_path: Path) -> None:
    told = good_json("plan", *KNOWN, "--plot", tmp_path / "costs.svg")
    assert told["plot"] == str(tmp_path / "costs.svg")
    assert (tmp_path / "costs.svg").read_text(encoding="utf-8").startswith("<?xml")
    refused(3, "invalid-input", "plan", *KNOWN, "--plot", tmp_path / "costs.txt")


# Refusals


def test_no_plan_at_all_says_what_to_give() -> None:
    for who in ((), NUMBERS, ("--data", "digits")):
        hint = refused(4, "plan-refused", "plan", *who)["hint"]
        assert "--rounds" in hint
        assert "fedforget plan --help" in hint
    shown = call("plan", "--help").out
    assert "fedforget plan --clients 300" in shown
    assert "fedforget plan --find" in shown


@pytest.mark.parametrize(
    "change",
    [
        ("--requests-per-day", "0"),
        ("--requests-per-day", "nan"),
        ("--sample-share", "1.5"),
        ("--window", "0"),
        ("--window", "inf"),
        ("--workers", "0"),
        ("--model-bytes", "-1"),
        ("--data", "digits"),
        ("--clients", "100000000000"),
    ],
    ids=" ".join,
)
def test_impossible_plan_values_are_refused(change: tuple[str, ...]) -> None:
    refused(3, "invalid-input", "plan", *KNOWN, *change)


@pytest.mark.parametrize("name", ["--clients", "--samples"])
def test_plan_without_clients_or_samples_is_refused(name: str) -> None:
    assert "nearest feasible is 1" in refused(4, "plan-refused", "plan", *KNOWN, name, "0")["hint"]


def test_plan_with_huge_number_of_rounds_is_fast() -> None:
    began = time.monotonic()
    told = good_json("plan", *NUMBERS, "--clients-per-round", "5", "--batch-size", "10", "--local-steps", "10",
                     "--rounds", "2000000000")  # fmt: skip
    assert told["client"]["probability"] == 1.0
    assert time.monotonic() - began < 2.0


def test_a_server_optimizer_costs_storage() -> None:
    """Two moments in float64 beside a model in float32."""
    plain, adam = (good_json("plan", *KNOWN, "--server-optimizer", name)["storage"] for name in ("average", "fedadam"))
    assert (plain["state_bytes"], adam["state_bytes"]) == (plain["model_bytes"], 5 * plain["model_bytes"])
