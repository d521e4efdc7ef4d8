"""A client: some steps of SGD on its own data."""

from __future__ import annotations

from itertools import chain, islice, repeat

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.utils.data import DataLoader

from flower_bench.task import build, load_data

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    config = context.run_config
    model = build(str(config["model"]))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    data = load_data(str(config["data"]), int(context.node_config["partition-id"]))
    batch_size = min(int(config["batch-size"]), len(data))
    batches = chain.from_iterable(repeat(DataLoader(data, batch_size=batch_size, shuffle=True, drop_last=True)))
    optimizer = torch.optim.SGD(model.parameters(), lr=float(config["lr"]))
    model.train()
    for x, y in islice(batches, int(config["local-steps"])):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    content = RecordDict(
        {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(data)})}
    )
    return Message(content=content, reply_to=message)
