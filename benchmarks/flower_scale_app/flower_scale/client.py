"""A client: FedForget's, and beside it a bare one that takes the same steps."""

from __future__ import annotations

from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from torch import nn

from fedforget.flower import client_app
from flower_scale.task import build, plan, samples_of

app = client_app(model=build, data=samples_of)


@cache
def _model() -> nn.Module:
    torch.set_num_threads(1)
    return build()


@app.train("bare")
def bare(message: Message, _: Context) -> Message:
    """Load, take E steps on the first samples of a client, and send the model back."""
    model, settings = _model(), plan(1)
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
