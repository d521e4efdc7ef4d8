"""The server: FedAvg without evaluation, noting when each round was done."""

from __future__ import annotations

import json
import time
from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from flower_bench.task import build

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    sampled, clients = int(config["clients-per-round"]), int(config["clients"])
    strategy = FedAvg(
        fraction_train=sampled / clients,
        fraction_evaluate=0.0,
        min_train_nodes=sampled,
        min_available_nodes=clients,
    )
    marks: list[float] = []
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(build(str(config["model"])).state_dict()),
        num_rounds=int(config["rounds"]),
        evaluate_fn=lambda _round, _arrays: marks.append(time.perf_counter()),  # before the first round, and after each
    )
    Path(str(config["report"])).write_text(json.dumps(marks))
