"""The server: rounds of FedForget and of the bare exchange take turns; how long they took goes into a file."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from fedforget import Run
from fedforget.federation.flower.nodes import GridNodes
from fedforget.federation.flower.post import GridPost
from fedforget.session.workforce import FLOWER_APP, Workforce
from flower_scale.task import SLOTS, build, has_femnist, plan, samples_of

POLL = 0.02
KINDS = ("bare", "plain")  # the same learner, and a plain loop of PyTorch
SERVER, ACTOR = "flwr-simulation", "ray::ClientAppActor"
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    directory, rounds, turns = Path(str(config["directory"])), int(config["rounds"]), int(config["turns"])
    found: dict[str, Any] = {"femnist": has_femnist(), "ours": [], **{kind: [] for kind in KINDS}}
    data = {client: samples_of(client) for client in range(int(config["clients"]))}
    start = time.perf_counter()
    run = Run(
        directory / "run", plan(rounds * (turns + 1)), model=build(), data=data, seed=7,
        federation=Workforce(FLOWER_APP, nodes=GridNodes(GridPost(grid), poll=POLL)),
    )  # fmt: skip
    found["making"] = time.perf_counter() - start
    run.train(rounds)
    found["memory"] = {name: [peak_of(each) for each in named(name)] for name in (SERVER, ACTOR)}
    for kind in KINDS:
        exchange(grid, kind, 1, lambda: None)  # models are built
    for turn in range(2, turns + 2):
        for kind in KINDS:
            found[kind].append(timed(lambda mark, kind=kind: exchange(grid, kind, rounds, mark)))
        found["ours"].append(timed(lambda mark, turn=turn: run.train(rounds * turn, lambda _: mark())))
    (directory / "report.json").write_text(json.dumps(found))


def timed(work: Callable[[Callable[[], None]], object]) -> list[tuple[float, float]]:
    """The time at the end of each round: by the clock, and of processors."""
    marks: list[tuple[float, float]] = []
    work(lambda: marks.append((time.perf_counter(), processors())))
    return marks


def exchange(grid: Grid, kind: str, rounds: int, mark: Callable[[], None]) -> None:
    """What federated averaging sends: one model to K nodes and K models back, which are averaged."""
    nodes = sorted(grid.get_node_ids())[:SLOTS]
    arrays = ArrayRecord(build().state_dict())
    for round_ in range(rounds):
        messages = [
            Message(
                RecordDict({"arrays": arrays, "config": ConfigRecord({"client": round_ * SLOTS + place})}),
                node,
                f"train.{kind}",
            )
            for place, node in enumerate(nodes)
        ]
        waiting, replies = set(grid.push_messages(messages)), list[Message]()
        while waiting:
            came = list(grid.pull_messages(waiting))
            replies += came
            waiting -= {reply.metadata.reply_to_message_id for reply in came}
            if waiting and not came:
                time.sleep(POLL)
        found = [reply.content["arrays"].to_numpy_ndarrays() for reply in replies]
        arrays = ArrayRecord([np.mean(each, axis=0) for each in zip(*found, strict=True)])
        arrays = ArrayRecord(dict(zip(build().state_dict(), map(_tensor, arrays.to_numpy_ndarrays()), strict=True)))
        mark()


def _tensor(array: np.ndarray) -> Any:
    import torch  # noqa: PLC0415 (only here)

    return torch.from_numpy(np.array(array))


def named(*names: str) -> list[Path]:
    """The processes with one of these in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and f"FLWR_HOME={os.environ['FLWR_HOME']}\0" in _text(entry / "environ"):
                command = _text(entry / "cmdline")
                found += [entry for name in names if name in command]
    return found


def processors() -> float:
    """Seconds of processors that the server, the nodes and Ray's store of objects have taken."""
    ticks = 0
    for entry in named(SERVER, ACTOR, "raylet"):
        with contextlib.suppress(OSError):
            ticks += sum(map(int, _text(entry / "stat").rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def peak_of(process: Path) -> float:
    """Peak memory in bytes."""
    with contextlib.suppress(OSError):
        for line in _text(process / "status").splitlines():
            if line.startswith("VmHWM:"):
                return 1024.0 * int(line.split()[1])
    return 0.0


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="replace")
