"""A user's own Flower app: it trains, goes on where it stopped, carries out what waits, and its examples are whole."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedforget import Plan, Request, Run
from fedforget.algorithm.seeds import SeedSource
from fedforget.errors import FedForgetError, InvalidInput, PlanRefused
from fedforget.flower import client_app, server_app
from fedforget.training.streams import own_streams, start_stream
from tests.federation import test_pool
from tests.federation.flower_in_process import InProcessGrid
from tests.test_api import PAGE, written

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PLAN = Plan(3, 3, 2, 4)
BUILT: list[int] = []


def build() -> torch.nn.Module:
    BUILT.append(1)
    return torch.nn.Linear(test_pool.FEATURES, test_pool.CLASSES)


def samples_of(client: int) -> Any:
    return test_pool.DATA[client]


def apps(**others: Any) -> tuple[ServerApp, ClientApp]:
    given: dict[str, Any] = {"plan": PLAN, "clients": test_pool.DATA, "seed": 3, **others}
    return server_app(model=build, data=samples_of, **given), client_app(model=build, data=samples_of)


def run_app(
    server: ServerApp, client: ClientApp, nodes: int = 4, config: dict[str, Any] | None = None, **others: Any
) -> InProcessGrid:
    """What `flwr run` does, in this process."""
    grid = InProcessGrid(dict.fromkeys(range(100, 100 + nodes), client))
    server(grid, Context(1, 0, {}, RecordDict(), {**others, **(config or {})}))
    return grid


def test_an_app_trains_what_the_same_run_trains_here(tmp_path: Path) -> None:
    run_app(*apps(test=lambda: test_pool.TEST), config={"run": str(tmp_path / "app"), "eval-every": 2})
    with own_streams():
        start_stream(SeedSource(3).initial_model())
        model = build()
    here = Run(tmp_path / "here", PLAN, model=model, data=test_pool.DATA, test=test_pool.TEST, seed=3)
    here.train(eval_every=2)
    app = Run(tmp_path / "app", model=build(), data=test_pool.DATA)
    assert app.state_digest() == here.state_digest()
    assert app.status().accuracies == here.status().accuracies
    assert app.verify().ok


def test_the_initial_model_follows_from_the_seed(tmp_path: Path) -> None:
    torch.manual_seed(1)
    run_app(*apps(), run=str(tmp_path / "one"))
    torch.manual_seed(2)
    run_app(*apps(), run=str(tmp_path / "two"), nodes=1)
    run_app(*apps(), run=str(tmp_path / "three"), seed=4)
    one, two, three = (
        Run(tmp_path / name, model=build(), data=test_pool.DATA).state_digest() for name in ("one", "two", "three")
    )
    assert one == two != three


def test_an_app_goes_on_where_it_stopped_and_carries_out_what_waits(tmp_path: Path) -> None:
    path = tmp_path / "run"
    run_app(*apps(), run=str(path), rounds=2)
    run = Run(path, model=build(), data=test_pool.DATA)
    assert run.status().rounds_done == 2
    for request in (Request(2, 0), Request(4)):
        run.forget(request, basis="exogenous", defer=True)
    run_app(*apps(), run=str(path))
    assert [receipt.state for receipt in run.receipts()] == ["purged", "purged"]
    gone = tmp_path / "gone.jsonl"
    gone.write_text('{"client": 2, "sample": 0}\n{"client": 4}\n')
    run_app(*apps(), run=str(tmp_path / "never"), without=str(gone))
    never = Run(tmp_path / "never", model=build(), data=test_pool.DATA)
    assert run.state_digest() == never.state_digest()


def test_clients_are_as_many_as_nodes_if_they_are_not_named(tmp_path: Path) -> None:
    run_app(*apps(clients=None), run=str(tmp_path), nodes=5)
    assert sorted(Run(tmp_path, model=build(), data=test_pool.DATA).clients()) == [0, 1, 2, 3, 4]


def test_nodes_build_the_model_once(tmp_path: Path) -> None:
    BUILT.clear()
    run_app(*apps(), run=str(tmp_path))
    assert len(BUILT) == 2


@pytest.mark.parametrize("app", [server_app, client_app])
def test_the_signature_is_the_listed_one(app: Any) -> None:
    assert f"`{app.__name__}{written(inspect.signature(app))}`" in PAGE


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({}, InvalidInput, "the run has no directory"),
        ({"run": "here"}, InvalidInput, "'here' is not an absolute path"),
        ({"run": "PATH", "rounds": 99}, FedForgetError, "99"),
    ],
)
def test_a_config_that_cannot_be_is_refused(
    tmp_path: Path, config: dict[str, Any], error: type[FedForgetError], message: str
) -> None:
    given = {key: str(tmp_path) if value == "PATH" else value for key, value in config.items()}
    with pytest.raises(error, match=message):
        run_app(*apps(), config=given)


def test_another_plan_for_the_same_directory_is_refused_and_shown_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_app(*apps(), run=str(tmp_path))
    with pytest.raises(PlanRefused):
        run_app(*apps(plan=Plan(2, 3, 2, 4)), run=str(tmp_path))
    assert "is a run with another plan" in caplog.text


# -------------------------------------------------------------------------------------------------------- the examples


@pytest.fixture
def imports() -> Iterator[Any]:
    """Import an example's modules, and forget them afterwards."""
    path, packages = list(sys.path), list[str]()

    def load(folder: Path, package: str) -> dict[str, Any]:
        sys.path.insert(0, str(folder))
        packages.append(package)
        return {name: importlib.import_module(f"{package}.{name}") for name in ("task", "server_app", "client_app")}

    yield load
    sys.path[:] = path
    for name in list(sys.modules):
        if name.partition(".")[0] in packages:
            del sys.modules[name]


@pytest.mark.parametrize(
    ("folder", "package"), [("flower-mnist", "flower_mnist"), ("flower-quickstart/after", "quickstart")]
)
def test_an_example_runs_and_forgets(imports: Any, tmp_path: Path, folder: str, package: str) -> None:
    found = imports(EXAMPLES / folder, package)
    run_app(found["server_app"].app, found["client_app"].app, run=str(tmp_path), seed=7, rounds=2)
    data = {client: found["task"].samples_of(client) for client in range(10)}
    make = found["task"].build if package == "flower_mnist" else found["task"].Net
    run = Run(tmp_path, model=make(), data=data)
    run.forget(client=3, sample=next(iter(data[3])), basis="exogenous", defer=True)
    run_app(found["server_app"].app, found["client_app"].app, run=str(tmp_path), seed=7, rounds=2)
    assert [receipt.state for receipt in run.receipts()] == ["purged"]
    assert run.verify().ok


def test_the_example_reads_mnist_if_it_is_there(imports: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = np.arange(20 * 28 * 28, dtype=np.uint8).reshape(20, 28, 28), np.arange(20) % 10
    np.savez(tmp_path / "mnist.npz", x_train=x, y_train=y, x_test=x[:5], y_test=y[:5])
    monkeypatch.setenv("FEDFORGET_DATA", str(tmp_path))
    task = imports(EXAMPLES / "flower-mnist", "flower_mnist")["task"]
    assert {client: list(task.samples_of(client)) for client in (0, 9)} == {0: [0, 10], 9: [9, 19]}
    image, label = task.samples_of(3)[13]
    assert (image.shape, image.dtype, label) == ((1, 28, 28), np.float32, 3)
    assert task.build()(torch.from_numpy(image[None])).shape == (1, 10)


def test_the_page_of_the_quickstart_shows_the_whole_difference() -> None:
    page = (EXAMPLES / "flower-quickstart" / "README.md").read_text()
    for name in ("server_app.py", "client_app.py"):
        before, after = (
            (EXAMPLES / "flower-quickstart" / which / "quickstart" / name).read_text().splitlines()
            for which in ("before", "after")
        )
        lines = difflib.unified_diff(before, after, lineterm="", n=1)
        shown = "\n".join(line for line in lines if line[:3] not in {"---", "+++"})
        assert shown in page, f"{name}:\n{shown}"
