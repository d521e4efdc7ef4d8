"""Check, before a run continues from kept rounds, that this learner and this machine trained them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id
from fedforget.algorithm.learn import Server
from fedforget.algorithm.witness import Repetition, repeat_witness
from fedforget.errors import EnvironmentDiffers, FedForgetError, LearnerDiffers, RunDamaged
from fedforget.session.engine import Engine
from fedforget.session.options import OtherEnvironment
from fedforget.session.pledge import pledged_elsewhere, repeat_pledge
from fedforget.store.environments import TrainedRounds
from fedforget.store.run_directory import OpenRun
from fedforget.training.environment import arithmetic, numeric_differences, numeric_environment
from fedforget.training.identity import differences, parts_of
from fedforget.training.streams import start_stream, stream_was_used

log = logging.getLogger("fedforget")


@dataclass(frozen=True, slots=True)
class LearnerCheck:
    """What a session is about to do: go on after ``rounds`` and carry out ``requests``."""

    engine: Engine
    run: OpenRun
    server: Server
    rounds: int
    requests: Sequence[Request]

    def require(self, other: OtherEnvironment) -> None:
        """Refuse to go on where another learner or environment computed the rounds. Changes nothing else."""
        run, engine = self.run, self.engine
        now, names = numeric_environment(), parts_of(engine.model.module, engine.model.loss)
        renamed = differences(run.record.learner, names)
        trained = run.record.environments.of_rounds(run.server.rounds_done)
        elsewhere = [each for each in trained if arithmetic(each.environment) != arithmetic(now)]
        staying = [each for each in elsewhere if each.first_round <= self.rounds]
        if staying and other is OtherEnvironment.REFUSE:
            raise _environment_differs(run, staying[0], now)

        found = self._repeat_steps(elsewhere, all_clients=bool(renamed))
        pending = run.record.batches.unfinished()
        if found is None and other is OtherEnvironment.REFUSE and pledged_elsewhere(pending):
            raise EnvironmentDiffers(
                f"nothing was changed: a request on {run.path} was begun in another environment, so this learner "
                "cannot be compared with the one that began it",
                hint="finish it where it was begun; or give --recompute-all (recompute_all=True) to compute all rounds "
                "here",
            )
        found = found or self._repeat_first_steps(elsewhere, now)
        if found is not None and found.agrees is None:
            raise RunDamaged(
                f"{run.clients.database.path} is damaged: client {found.client} has no witness of round {found.round}"
            )
        if found is not None and not found.agrees:
            why = f" ({'; '.join(renamed)})" if renamed else ""
            then = f"client {found.client} trained round {found.round}" if found.round else "the request began"
            raise _learner_differs(f"the module or the loss computes something else than when {then}{why}")
        compared = found is not None
        if renamed:
            if not compared and (run.server.rounds_done or pending):
                raise _learner_differs(f"no earlier step can be repeated to compare, and {'; '.join(renamed)}")
            known = "the steps that were repeated agree" if compared else "no round was trained yet"
            log.warning("the learner is described otherwise than before (%s): %s", known, "; ".join(renamed))
            run.record.note_learner(names, renamed, compared=compared)

    def _repeat_steps(self, elsewhere: Sequence[TrainedRounds], *, all_clients: bool) -> Repetition | None:
        """Repeat a witness; where none can be repeated, the pledge of a pending batch. None if there is neither."""

        def computed_here(round_: int) -> bool:
            return not any(each.first_round <= round_ <= each.last_round for each in elsewhere)

        found = repeat_witness(
            self.server,
            self.rounds,
            self.requests,
            all_clients=all_clients,
            comparable=computed_here,
            intact=self._is_intact,
        )
        return found or repeat_pledge(self.engine, self.run, self.run.record.batches.unfinished())

    def _is_intact(self, client: Id) -> bool:
        """Return whether the data still hold all of a client's samples, including those it is about to lose."""
        try:
            self.engine.data.require_unchanged(client, self.run.clients.contents(client))
        except FedForgetError:
            return False
        return True

    def _repeat_first_steps(self, elsewhere: Sequence[TrainedRounds], now: Mapping[str, str]) -> Repetition | None:
        """Have all clients of a round from another environment repeat its first step, and compare within a tolerance.

        None if nothing can be compared.
        """
        run = self.run
        if not run.server.rounds_done:
            return None
        begun = bool(run.record.batches.unfinished())  # it may have removed samples that later rounds drew
        start_stream(bytes(8))
        found = repeat_witness(
            self.server,
            self.rounds,
            self.requests,
            all_clients=True,
            intact=(lambda _: False) if begun else self._is_intact,
            bitwise=False,
        )
        if found is None or (stream_was_used() and not _draws_alike(elsewhere, found, now)):
            log.warning("only the structure of the learner could be compared with the one that trained %s", run.path)
            return None
        return found


def _draws_alike(elsewhere: Sequence[TrainedRounds], found: Repetition, now: Mapping[str, str]) -> bool:
    """Return whether random layers drew the same in the environment of a repeated round as they do here."""
    return all(
        each.environment.get("random") == now["random"]
        for each in elsewhere
        if each.first_round <= found.round <= each.last_round
    )


def _learner_differs(what: str) -> LearnerDiffers:
    return LearnerDiffers(
        f"nothing was changed: {what}", hint="open the run with the module and the loss that it was trained with"
    )


def _environment_differs(run: OpenRun, then: TrainedRounds, now: dict[str, str]) -> EnvironmentDiffers:
    done = max([run.server.rounds_done, *(intent.decision.goal for intent in run.record.batches.unfinished())])
    steps = run.server.steps_of(done)
    changes = "; ".join(numeric_differences(then.environment, now))
    return EnvironmentDiffers(
        f"nothing was changed: {run.path} has {then} from another environment ({changes}), "
        "and continuing here would mix environments",
        hint=f"work where they were trained; or give --recompute-all (recompute_all=True) to compute all {done} rounds "
        f"({steps} steps) here, exact again; or --accept-mixed (accept_mixed=True), and the full receipt says so",
    )
