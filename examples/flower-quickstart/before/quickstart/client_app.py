"""A client."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.task import Net, accuracy, load_data, train

app = ClientApp()


@app.train()
def train_locally(message: Message, context: Context) -> Message:
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loader, _ = load_data(int(context.node_config["partition-id"]), int(context.run_config["batch-size"]))
    loss = train(net, loader, int(context.run_config["local-epochs"]), float(message.content["config"]["lr"]))
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate_locally(message: Message, context: Context) -> Message:
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    _, loader = load_data(int(context.node_config["partition-id"]), int(context.run_config["batch-size"]))
    with torch.no_grad():
        metrics = MetricRecord({"accuracy": accuracy(net, loader), "num-examples": len(loader.dataset)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
