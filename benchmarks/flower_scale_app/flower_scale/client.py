"""A client: FedForget's, and beside it two that only take as many steps."""

from __future__ import annotations

from collections import OrderedDict
from functools import cache

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from torch import nn

from fedforget import Plan
from fedforget.algorithm.ports import LocalRound
from fedforget.data.federated import FederatedData
from fedforget.flower import client_app
from fedforget.training.arithmetic import fixed_arithmetic
from fedforget.training.local_sgd import TorchLearner
from fedforget.training.streams import own_streams
from flower_scale.task import build, plan, samples_of

app = client_app(model=build, data=samples_of)


@cache
def _model() -> nn.Module:
    torch.set_num_threads(1)
    return build()


@cache
def _settings() -> Plan:
    return plan(1)


@app.train("bare")
def bare(message: Message, _: Context) -> Message:
    """The steps of FedForget's learner on the first samples of a client, and nothing else."""
    settings, client = _settings(), int(message.content["config"]["client"])
    weights = {name: array.numpy() for name, array in message.content["arrays"].items()}
    steps, size = settings.local_steps, settings.batch_size
    rows = np.tile(np.arange(size), (steps, 1))
    work = LocalRound(1, client, weights, tuple(range(size)), rows, (bytes(16),) * steps)
    model, data = _model(), FederatedData({client: samples_of(client)})
    with fixed_arithmetic(), own_streams():
        trained = TorchLearner(model, data, settings.local).train(work)
    arrays = ArrayRecord(OrderedDict((name, Array(array)) for name, array in trained.model.items()))
    return Message(RecordDict({"arrays": arrays}), reply_to=message)


@app.train("plain")
def plain(message: Message, _: Context) -> Message:
    """The same in a plain loop, as an app of Flower has it."""
    model, settings = _model(), _settings()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    samples = samples_of(int(message.content["config"]["client"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.local.lr)
    ids = [each for each, _ in zip(samples, range(settings.batch_size), strict=False)]
    for _step in range(settings.local_steps):
        pairs = [samples[each] for each in ids]
        x = torch.stack([torch.from_numpy(x) for x, _ in pairs])
        y = torch.tensor([int(y) for _, y in pairs])
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict())}), reply_to=message)
