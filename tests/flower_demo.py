"""Five clients on Flower: train, erase an image at its client and a client at the server, verify. `make flower-demo`.

Real processes on this machine: a SuperLink with TLS, node authentication and a database, and five SuperNodes.
"""

from __future__ import annotations

import sys
import time

from tests.deployment.parties import Parties
from tests.deployment.superlink import deployment

CLIENTS, ROUNDS = 5, 4
started = time.monotonic()


def say(text: str) -> None:
    sys.stdout.write(f"[{time.monotonic() - started:4.0f} s] {text}\n")
    sys.stdout.flush()


def main() -> None:
    with deployment() as there:
        parties = Parties(there, CLIENTS, ROUNDS)
        say(f"starting a SuperLink (TLS, node authentication) and {CLIENTS} SuperNodes, each with one client's data")
        parties.start()
        say("training: the server has no data, no seeds and no sample ids of clients")
        parties.called(*parties.train_command())
        whole = parties.inline("whole")
        say(f"trained over Flower  {parties.digest()}")
        say(f"trained in one place {whole}")
        assert parties.digest() == whole

        sample = parties.asked("clients", there.folder / "whole", "--client", 1)["ids"][0]
        say(f"client 1 erases its image {sample}, on its own machine")
        where = ("--state-dir", parties.state_dir(1))
        parties.called("client", "forget", *where, "--sample", sample, "--basis", "exogenous")
        parties.through("run-pending")
        say("the server carried it out; it knows the first changed round, and not which image")
        say("the operator erases client 3 as a whole")
        parties.through("forget", "--client", 3, "--basis", "exogenous")
        never = parties.inline("never", [{"client": 1, "sample": sample}, {"client": 3}])
        say("every client replays its own part")
        assert parties.through("verify")["ok"]
        say("verified")
        sys.stdout.write(
            f"\n  unlearned over Flower                {parties.digest()}\n"
            f"  trained from scratch without the data {never}\n\n"
        )
        assert parties.digest() == never
        sys.stdout.write("The two are equal. No machine but the client's own ever held its data.\n")


if __name__ == "__main__":
    main()
