"""A user's own app in a deployment: the SuperLink is killed, and `flwr run` again resumes the run."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from types import ModuleType

from fedforget import Run
from fedforget.algorithm.seeds import SeedSource
from fedforget.client_side import ClientState
from fedforget.training.streams import own_streams, start_stream
from tests.deployment.faults import rounds_done_in
from tests.deployment.parties import SEED
from tests.deployment.superlink import NAME, Deployment, wait_for

CLIENTS = 5
FILES = {
    "pyproject.toml": """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "wards"
version = "1.0.0"
description = "Digits of five clients"
license = "MIT"
dependencies = ["flwr>=1.41"]

[tool.hatch.build.targets.wheel]
packages = ["wards"]

[tool.flwr.app]
publisher = "fedforget"

[tool.flwr.app.components]
serverapp = "wards.apps:server"
clientapp = "wards.apps:client"

[tool.flwr.app.config]
run = ""
enrolled = ""
seed = ""
patience = 600
""",
    "wards/__init__.py": "",
    "wards/task.py": """
import torch
from sklearn.datasets import load_digits

from fedforget import Plan

PLAN = Plan(clients_per_round=2, batch_size=8, local_steps=2, rounds=4)


def build():
    return torch.nn.Linear(64, 10)


def samples_of(client):
    x, y = load_digits(return_X_y=True)
    rows = range(int(client), 300, 5)
    return {row: ((x[row] / 16).astype("float32"), int(y[row])) for row in rows}
""",
    "wards/apps.py": """
from fedforget.flower import client_app, server_app
from wards.task import PLAN, build, samples_of

server = server_app(model=build, data=samples_of, plan=PLAN)
client = client_app(model=build, data=samples_of)
""",
}


def lived(there: Deployment) -> tuple[bool, float]:
    """Train, kill the SuperLink in a round, start it, and give `flwr run` again. Compare with one process."""
    app = there.folder / "app"
    for name, text in FILES.items():
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_text(text.lstrip())
    task = _loaded(app / "wards" / "task.py")
    _start(there, task)
    run, began = there.folder / "run", time.monotonic()
    _flwr_run(there, app, run)
    wait_for(lambda: rounds_done_in(run) >= 1, 400)
    assert there.superlink is not None
    there.kill(there.superlink)
    assert rounds_done_in(run) < task.PLAN.rounds
    there.start_superlink()
    time.sleep(20)  # its nodes come back by themselves
    _flwr_run(there, app, run)
    wait_for(lambda: rounds_done_in(run) == task.PLAN.rounds, 400)
    seconds = time.monotonic() - began
    wait_for(lambda: not there.processes("flwr-serverapp"), 60)
    return _digest(there, run) == _inline(there, task), seconds


def _start(there: Deployment, task: ModuleType) -> None:
    there.start_superlink()
    (there.folder / "enrolled").mkdir()
    for client in range(CLIENTS):
        place = there.folder / f"client-{client}"
        state = ClientState.init(place, client, task.samples_of(client), seed=SEED)
        (there.folder / "enrolled" / f"{client}.json").write_bytes(state.enrolment())
        there.register(f"node-{client}")
        there.start_node(f"node-{client}", place)


def _flwr_run(there: Deployment, app: Path, run: Path) -> None:
    config = f"run='{run}' enrolled='{there.folder / 'enrolled'}' seed={SEED}"
    done = there.flwr("run", str(app), NAME, "--run-config", config)
    assert done.returncode == 0, done.stdout + done.stderr


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("wards_task", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _digest(there: Deployment, run: Path) -> str:
    done = there.fedforget("state", run)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _inline(there: Deployment, task: ModuleType) -> str:
    with own_streams():
        start_stream(SeedSource(SEED).initial_model())
        model = task.build()
    data = {client: task.samples_of(client) for client in range(CLIENTS)}
    run = Run(there.folder / "inline", task.PLAN, model=model, data=data, seed=SEED)
    run.train()
    return run.state_digest()
