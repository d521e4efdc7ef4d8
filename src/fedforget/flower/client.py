"""Build the learner of a deployment node: the client in its state directory, its samples, and the run's model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedforget.algorithm.ids import Id
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import LocalRound, SampleSource, Trained
from fedforget.client_side.identity import Identity
from fedforget.client_side.opened import Fits, Learning, LearningOf, OpenClient, open_client, without_names
from fedforget.client_side.recorded_samples import recorded_samples
from fedforget.data.client_data import ClientData
from fedforget.data.one_client import is_of_function
from fedforget.errors import FedForgetError, InvalidInput, LearnerDiffers, shown
from fedforget.federation.flower.client import no_client_error
from fedforget.federation.parcels import Parcel
from fedforget.session.engine import Model
from fedforget.store.plan_file import PlanFile
from fedforget.training.arithmetic import fixed_arithmetic
from fedforget.training.environment import numeric_environment
from fedforget.training.identity import parts_of
from fedforget.training.local_sgd import TorchLearner
from fedforget.training.models import build_model
from fedforget.training.shapes import require_fits
from fedforget.training.streams import own_streams
from fedforget.training.weights import float_type

_OWN_APP = "deploy your own app, with fedforget.flower.client_app"


@dataclass(frozen=True, slots=True)
class Answering:
    """A client whose state directory is open, and its learner."""

    client: OpenClient
    learning: LearningOf
    fits: Fits

    def answer(self, asked: Parcel) -> Parcel:
        return self.client.answer(asked, self.learning, self.fits)


@contextlib.contextmanager
def answering(node_config: Mapping[str, Any], learning: LearningOf) -> Iterator[Answering]:
    """Open the client of a node for one message."""
    if not node_config.get("state-dir"):
        raise no_client_error()
    state_dir = _state_dir(node_config)
    with open_client(state_dir) as client:
        yield Answering(client, learning, partial(require_own_samples_fit, client.client, state_dir))


def require_own_samples_fit(client: Id, state_dir: Path, file: PlanFile) -> None:
    """Refuse a run with a built-in model that cannot be trained on the samples of the user's own function."""
    noted = Identity.read(state_dir).dataset
    if not file.is_built_in or not is_of_function(noted):
        return
    try:
        data = ClientData(client, recorded_samples(noted, client, state_dir, hint=_OWN_APP))
        read = [data.sample(sample) for sample in data.ids]
    except FedForgetError as error:
        raise without_names(client, error) from error
    for x, y in read:
        require_fits(file.model, x, y, f"a sample of client {shown(client)}")


def _state_dir(node_config: Mapping[str, Any]) -> Path:
    return Path(str(node_config["state-dir"])).expanduser()


@dataclass(frozen=True, slots=True)
class OwnLearner:
    """A ``LocalLearner`` that computes in fixed modes."""

    model: Model
    samples: SampleSource
    plan: Plan

    def train(self, work: LocalRound) -> Trained:
        with fixed_arithmetic(float_type(self.model.module)), own_streams():
            learner = TorchLearner(
                self.model.module, self.samples, self.plan.local, self.model.loss, self.model.pristine
            )
            return learner.train(work)


def learning_of(client: OpenClient, model: Model, samples: Any) -> Learning:
    """Return the learner of a client: its model, on its samples. Refuse a model that is not the run's."""
    file = client.plan_file
    if file is None:
        raise InvalidInput("the client has no plan yet", hint="the server sends it first")
    model.require_of(file, Path("the run"))
    return Learning(
        OwnLearner(model, client.checked(samples), file.plan), parts_of(model.module, model.loss), lambda: _here(model)
    )


def _here(model: Model) -> Mapping[str, str]:
    with fixed_arithmetic(float_type(model.module)):
        return numeric_environment()


def built_in_learning(node_config: Mapping[str, Any]) -> Callable[[OpenClient], Learning]:
    """Return what makes the learner of a run with a built-in model, on the data that the state directory names."""

    def learning(client: OpenClient) -> Learning:
        file = client.plan_file
        if file is None or not file.is_built_in:
            raise LearnerDiffers("the model of this run is not built in", hint=_OWN_APP)
        data_dir = node_config.get("data-dir")
        state_dir, place = _state_dir(node_config), None if data_dir is None else Path(str(data_dir))
        noted = Identity.read(state_dir).dataset
        try:
            samples = recorded_samples(noted, client.client, state_dir, data_dir=place, hint=_OWN_APP)
        except FedForgetError as error:
            raise (without_names(client.client, error) if is_of_function(noted) else error) from error
        return learning_of(client, Model.of(build_model(file.model, bytes(32))), samples)

    return learning
