"""Clients of a real deployment on the digits, and the run in one process that has the same seeds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedforget.cli.client_data import ClientDataOptions
from fedforget.client_side import ClientState
from tests.deployment.superlink import NAME, Deployment

SEED = 13


class Parties:
    """``count`` clients, each with a node and a state directory; the run is ``run`` in the folder of the deployment."""

    def __init__(self, there: Deployment, count: int, rounds: int, slots: int = 2) -> None:
        self.there, self.count, self.run = there, count, there.folder / "run"
        self.plan = (
            "--data", "digits", "--clients", count, "--clients-per-round", slots, "--batch-size", 8,
            "--local-steps", 2, "--rounds", rounds, "--seed", SEED,
        )  # fmt: skip

    def state_dir(self, client: int) -> Path:
        return self.there.folder / f"client-{client}"

    def init(self, client: int) -> None:
        self.called(
            "client", "init", "--state-dir", self.state_dir(client), "--client", client, "--seed", SEED, "--data",
            "digits", "--clients", self.count, "--partition-seed", SEED, "--out", self.enrolment(client),
        )  # fmt: skip

    def renew(self) -> None:
        """Begin anew on the same nodes: other state directories in the same places, and no run."""
        shutil.rmtree(self.run, ignore_errors=True)
        for client in range(self.count):
            self.there.fault(self.node(client)).unlink(missing_ok=True)
            self.make_state(client)

    def make_state(self, client: int, seed: int = SEED) -> ClientState:
        """What ``init`` does, in this process, in place of what is there."""
        shutil.rmtree(self.state_dir(client), ignore_errors=True)
        samples, noted = ClientDataOptions("digits", None, self.count, None, str(SEED)).chosen(client)
        state = ClientState.init(self.state_dir(client), client, samples, seed=seed, dataset=noted)
        self.enrolment(client).write_bytes(state.enrolment())
        return state

    def enrolment(self, client: int) -> Path:
        return self.there.folder / f"client-{client}.json"

    def node(self, client: int) -> str:
        return f"node-{client}"

    def start(self, *, init: bool = True) -> None:
        """Start the SuperLink, and a node for each client."""
        self.there.start_superlink()
        for client in range(self.count):
            if init:
                self.init(client)
            self.there.register(self.node(client))
            self.there.start_node(self.node(client), self.state_dir(client))

    def train_command(self, *more: object) -> list[object]:
        enrolled = [part for client in range(self.count) for part in ("--enrolled", self.enrolment(client))]
        return ["train", "--out", self.run, "--federation", f"flower:{NAME}", *self.plan, *enrolled, *more]

    def refused(self, *arguments: object, timeout: float = 1500) -> dict[str, Any]:
        """Give a command that is to fail. Return its error, with its exit code."""
        done = self.there.fedforget(*arguments, "--json", timeout=timeout)
        assert done.returncode, f"{arguments} ended well:\n{done.stdout}"
        error: dict[str, Any] = json.loads(done.stderr.strip().splitlines()[-1])["error"]
        return {**error, "exit": done.returncode}

    def called(self, *arguments: object, timeout: float = 1500, code: int = 0) -> str:
        """Give a command of FedForget. Return what it printed."""
        done = self.there.fedforget(*arguments, timeout=timeout)
        assert done.returncode == code, f"{arguments} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def asked(self, *arguments: object, timeout: float = 1500) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.called(*arguments, "--json", timeout=timeout))
        return found

    def through(self, command: str, *arguments: object) -> dict[str, Any]:
        """Give a command on the run that reaches the clients."""
        return self.asked(command, self.run, "--federation", f"flower:{NAME}", *arguments)

    def digest(self, run: Path | None = None) -> str:
        return str(self.asked("state", run or self.run)["digest"])

    def forget_inline(self, name: str) -> None:
        """Remove a run that was trained in one process."""
        shutil.rmtree(self.there.folder / name, ignore_errors=True)

    def inline(self, name: str, without: Sequence[dict[str, Any]] = (), until: int | None = None) -> str:
        """Train in one process, without some data. Return the digest of the state."""
        path, left_out = self.there.folder / name, []
        if without:
            requests = self.there.folder / f"{name}.jsonl"
            requests.write_text("".join(json.dumps(each) + "\n" for each in without))
            left_out = ["--without", requests]
        rounds = [] if until is None else ["--until-round", until]
        self.called("train", "--out", path, "--federation", "inline", *self.plan, *left_out, *rounds)
        return self.digest(path)
