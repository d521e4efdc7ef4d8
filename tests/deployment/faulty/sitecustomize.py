"""Lets the processes of a SuperNode misbehave. Python imports this file at its start if its folder is on PYTHONPATH.

The file that FF_FAULT names says how, and is read each time; without it nothing is changed:

    nan, shape      a local model that is not finite, or has another shape, with the client's own signature
    twice           each answer is sent twice, and each message is answered a second time
    late SECONDS    a local model is sent so much later
    record FOLDER   each local model is also written into a folder
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import sys
import time
from dataclasses import replace
from pathlib import Path


def fault() -> list[str]:
    try:
        return Path(os.environ["FF_FAULT"]).read_text().split()
    except (KeyError, OSError):
        return []


def changed(trained):
    import numpy as np  # noqa: PLC0415

    kind, *more = fault() or [""]
    model = {name: np.array(tensor) for name, tensor in trained.model.items()}
    first = next(iter(model))
    if kind == "nan":
        model[first].reshape(-1)[0] = np.nan
    elif kind == "shape":
        model[first] = model[first].reshape(-1)
    elif kind == "late":
        time.sleep(float(more[0]))
    elif kind == "record":
        for tensor in model.values():
            (Path(more[0]) / secrets.token_hex(8)).write_bytes(tensor.tobytes())
    return replace(trained, model=model)


def change_learner(module) -> None:
    train = module.TorchLearner.train
    module.TorchLearner.train = lambda self, work: changed(train(self, work))


def change_client(module) -> None:
    answer = module.OpenClient.answer

    def answered(self, *asked):
        if fault() == ["twice"]:
            answer(self, *asked)
        return answer(self, *asked)

    module.OpenClient.answer = answered


def change_supernode(module) -> None:
    push = module.FleetHttpClient.PushMessages

    def pushed(self, request, *more, **named):
        found = push(self, request, *more, **named)
        if fault() == ["twice"]:
            try:
                push(self, request, *more, **named)
            except Exception as error:  # noqa: BLE001
                sys.stderr.write(f"the second answer was refused: {error}\n")
            else:
                sys.stderr.write("the second answer was accepted\n")
        return found

    module.FleetHttpClient.PushMessages = pushed


CHANGES = {
    "fedforget.training.local_sgd": change_learner,
    "fedforget.client_side.opened": change_client,
    "flwr.supernode.fleet_http_client": change_supernode,
}


class Finder:
    """Finds the modules to change, and changes them once they are loaded."""

    def __init__(self) -> None:
        self._looking: set[str] = set()

    def find_spec(self, name, path=None, target=None):
        if name not in CHANGES or name in self._looking:
            return None
        self._looking.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking.discard(name)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module) -> None:
            load(module)
            CHANGES[name](module)

        spec.loader.exec_module = exec_module
        return spec


if "FF_FAULT" in os.environ:
    sys.meta_path.insert(0, Finder())
