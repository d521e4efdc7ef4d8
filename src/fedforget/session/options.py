"""What a caller can ask of the rounds that a session computes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fedforget.algorithm.learn import Progress
from fedforget.algorithm.plan import check_eval_every
from fedforget.errors import InvalidInput
from fedforget.session.arguments import require_callback, require_flags, whole_or_none


class OtherEnvironment(StrEnum):
    """What to do where other hardware or libraries trained the rounds that stay."""

    REFUSE = "refuse"
    RECOMPUTE = "recompute"  # all rounds, here: exact again
    ACCEPT = "accept"  # bytes of neither environment

    @classmethod
    def of(cls, *, recompute_all: bool, accept_mixed: bool) -> OtherEnvironment:
        if recompute_all and accept_mixed:
            raise InvalidInput(
                "all rounds cannot be recomputed and mixed", hint="give one of --recompute-all and --accept-mixed"
            )
        return cls.RECOMPUTE if recompute_all else cls.ACCEPT if accept_mixed else cls.REFUSE


@dataclass(frozen=True, slots=True)
class RoundOptions:
    """The callback and evaluation of rounds, and what to do if another environment trained the earlier ones."""

    on_round: Progress | None = None  # called after each round
    eval_every: int | None = None
    other_environment: OtherEnvironment = OtherEnvironment.REFUSE

    @classmethod
    def of(
        cls, on_round: Any = None, eval_every: Any = None, *, recompute_all: bool = False, accept_mixed: bool = False
    ) -> RoundOptions:
        """Check a caller's arguments."""
        require_flags(recompute_all=recompute_all, accept_mixed=accept_mixed)
        require_callback(on_round)
        check_eval_every(whole_or_none(eval_every, "eval_every"))
        return cls(on_round, eval_every, OtherEnvironment.of(recompute_all=recompute_all, accept_mixed=accept_mixed))
