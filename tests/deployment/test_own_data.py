"""Clients whose samples come from a function of the user's own, under a built-in model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedforget.algorithm.seeds import SeedSource
from fedforget.client_side import ClientState
from fedforget.client_side.enrolment import Enrolment
from fedforget.client_side.identity import Identity
from fedforget.data.one_client import function_noted, samples_of_function, samples_recorded
from fedforget.errors import FedForgetError, InvalidInput
from fedforget.federation import parcels
from fedforget.federation.parcels import Parcel
from fedforget.flower.client import answering, built_in_learning
from fedforget.run import OWN
from fedforget.session.engine import Model
from fedforget.session.enrolling import enroll
from fedforget.session.starting import create_remote_run
from fedforget.store import hints, run_directory
from fedforget.store.contacts import EnrolledClient
from fedforget.store.plan_file import PlanFile
from fedforget.store.run_directory import unfinished_error
from fedforget.store.state_digest import state_digest
from fedforget.training.models import build_model, structure_of_settings
from fedforget.training.shapes import require_fits
from tests.client_side.deployment import PLAN

MODEL: dict[str, Any] = {"name": "mlp", "inputs": 4, "hidden": 3, "classes": 2}
FILE = PlanFile(PLAN, MODEL, {"name": "digits"}, bytes(32), structure_of_settings(MODEL))
CODE = "def samples(client):\n    return {f's{i}': ([float(i)] * WIDTH, i % 2) for i in range(6)}\n"


class Place:
    """A folder with a module of the user, in which a client is initialised."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.module = folder, f"mine_{folder.name.replace('-', '_')}"
        self.write(5)
        self.state = ClientState.init(folder / "c", 7, self.samples(), dataset=function_noted(self.name, folder))

    @property
    def name(self) -> str:
        return f"{self.module}:samples"

    def write(self, width: int) -> None:
        sys.modules.pop(self.module, None)
        code = CODE.replace("WIDTH", str(width)) + "#" * width  # another size: no stale bytecode
        (self.folder / f"{self.module}.py").write_text(code)

    def samples(self) -> Any:
        return samples_of_function(self.name, 7, self.folder)

    def recorded(self) -> Any:
        return samples_recorded(Identity.read(self.state.path).dataset, 7, self.state.path, hint="")

    def enrolled(self) -> EnrolledClient:
        found = Enrolment.parsed(self.state.enrolment())
        return EnrolledClient(7, found.commitment, found.root, found.public_key.public_bytes_raw())

    def told_the_plan(self) -> FedForgetError | None:
        """Let the node answer as its ClientApp does. Return the error in its answer."""
        node = {"state-dir": str(self.state.path)}
        asked = parcels.request("run-1", 1, parcels.PLAN, 7, plan=FILE.encode().decode())
        with answering(node, built_in_learning(node)) as client:
            answered: Parcel = client.answer(asked)
        return parcels.error_in(answered, 7)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.chdir(tmp_path)
    return Place(tmp_path)


def test_module_is_found_from_any_working_directory(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    sys.modules.pop(place.module)
    found = place.recorded()
    assert sorted(found) == [f"s{number}" for number in range(6)]


def test_missing_module_is_an_error_that_names_where_to_put_it(place: Place) -> None:
    sys.modules.pop(place.module)
    (place.folder / f"{place.module}.py").unlink()
    with pytest.raises(InvalidInput, match="there is no module") as refused:
        place.recorded()
    assert "PYTHONPATH" in refused.value.hint
    assert str(place.folder) in refused.value.hint


def test_samples_of_another_shape_are_named_before_the_plan_is_kept(place: Place) -> None:
    error = place.told_the_plan()
    assert error is not None
    assert error.message == (
        "a sample of client 7 has features of shape (5,), and the model mlp of this run takes (4,)"
    )
    assert "client init --again" in error.hint
    assert not place.state.status().has_plan


def test_error_of_the_function_is_told_to_the_server_without_its_words(place: Place) -> None:
    sys.modules.pop(place.module)
    (place.folder / f"{place.module}.py").write_text("def samples(client):\n    raise KeyError('patient-0017')\n")
    error = place.told_the_plan()
    assert error is not None
    assert error.message == "the data of client 7 cannot be read at its node"
    assert "patient" not in error.message + error.hint


def test_repaired_function_is_read_anew_and_enrolled_before_the_first_round(place: Place) -> None:
    run, seeds = place.folder / "run", SeedSource(1)
    model = Model.of(build_model(MODEL, bytes(32)))
    create_remote_run(run, FILE, model, seeds, [place.enrolled()])
    before = place.state.status()
    place.write(4)
    place.state.begin_again(place.samples())
    now = place.state.status()
    assert (now.commitment, now.root != before.root) == (before.commitment, True)
    assert place.told_the_plan() is None
    enroll(run, [place.enrolled()])
    create_remote_run(place.folder / "other", FILE, model, seeds, [place.enrolled()])
    digests = []
    for path in (run, place.folder / "other"):
        with run_directory.reading(path) as opened:
            digests.append(state_digest(opened))
    assert digests[0] == digests[1], "as if the client had enrolled with the repaired samples"


def test_hints_for_a_deployment_reach_its_clients(place: Place) -> None:
    run = place.folder / "run"
    create_remote_run(run, FILE, Model.of(build_model(MODEL, bytes(32))), SeedSource(1), [place.enrolled()])
    assert f"`fedforget train {run} --federation flower:NAME`" in unfinished_error(run).hint
    assert hints.run_pending(run) == f"`fedforget run-pending {run} --federation flower:NAME`"
    assert hints.verify(run) == f"`fedforget verify {run} --federation flower:NAME`"
    own = PlanFile(PLAN, OWN, OWN, bytes(32), {"w": "parameter float32 2"})
    assert hints.run_pending(run, file=own) == "`flwr run` of its Flower app"


def test_client_with_requests_does_not_begin_again(place: Place) -> None:
    place.state.forget(["s1"])
    with pytest.raises(InvalidInput, match="has trained or has requests"):
        place.state.begin_again(place.samples())


def test_samples_are_listed_without_those_about_to_be_erased(place: Place) -> None:
    place.state.forget(["s1"])
    assert place.state.samples() == ("s0", "s2", "s3", "s4", "s5")


@pytest.mark.parametrize(
    ("settings", "shape", "label", "says"),
    [
        ({"name": "mlp", "inputs": 4, "hidden": 3, "classes": 2}, (4,), 1, None),
        ({"name": "mlp", "inputs": 4, "hidden": 3, "classes": 2}, (2, 2), 1, r"takes \(4,\)"),
        ({"name": "flat_mlp", "inputs": 4, "hidden": 3, "classes": 2}, (2, 2), 1, None),
        ({"name": "linear", "inputs": 4, "classes": 2}, (2, 3), 1, "takes 4 numbers"),
        ({"name": "cnn", "side": 28, "channels": 1, "hidden": 3, "classes": 2}, (1, 28, 28), 0, None),
        ({"name": "cnn", "side": 28, "channels": 1, "hidden": 3, "classes": 2}, (28, 28), 0, r"takes \(1, 28, 28\)"),
        ({"name": "vgg16", "hidden": 3, "classes": 2}, (32, 32, 3), 0, r"takes \(3, 32, 32\)"),
        ({"name": "lstm", "letters": 4, "embedding": 2, "hidden": 2}, (9,), 3, None),
        ({"name": "lstm", "letters": 4, "embedding": 2, "hidden": 2}, (9, 1), 3, "takes a row of letters"),
        ({"name": "linear", "inputs": 4, "classes": 2}, (4,), 2, "no class: .* knows the classes 0 to 1"),
        ({"name": "linear", "inputs": 4, "classes": 2}, (4,), 0.5, "of type float64 and shape"),
    ],
)
def test_shapes_of_the_built_in_models(settings: Any, shape: tuple[int, ...], label: float, says: str | None) -> None:
    x, y = np.zeros(shape, np.float32), np.asarray(label)
    if says is None:
        require_fits(settings, x, y, "it")
        return
    with pytest.raises(InvalidInput, match=says):
        require_fits(settings, x, y, "it")
