"""FedForget: exact federated unlearning.

from fedforget import Plan, Request, Run
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

__version__ = "0.3.0.dev0"

logging.getLogger(__name__).addHandler(logging.NullHandler())  # the application decides what to show

if TYPE_CHECKING:
    from fedforget.algorithm.forget import Request
    from fedforget.algorithm.plan import LocalOptimizer, Plan, ServerOptimizer
    from fedforget.errors import FedForgetError
    from fedforget.evidence.rebuild import Rebuilt
    from fedforget.evidence.receipts.check import ReceiptCheck, read_receipt
    from fedforget.evidence.replay import Verification
    from fedforget.planner.costs import ForgettingCost, forgetting_cost
    from fedforget.planner.round_law import Withdrawal
    from fedforget.requests.lifecycle import Receipt
    from fedforget.requests.policy import Policy
    from fedforget.run import Run
    from fedforget.session.status import Status

__all__ = [
    "FedForgetError",
    "ForgettingCost",
    "LocalOptimizer",
    "Plan",
    "Policy",
    "Rebuilt",
    "Receipt",
    "ReceiptCheck",
    "Request",
    "Run",
    "ServerOptimizer",
    "Status",
    "Verification",
    "Withdrawal",
    "__version__",
    "forgetting_cost",
    "read_receipt",
]

_HOMES = {
    "FedForgetError": "fedforget.errors",
    "ForgettingCost": "fedforget.planner.costs",
    "LocalOptimizer": "fedforget.algorithm.plan",
    "Withdrawal": "fedforget.planner.round_law",
    "Plan": "fedforget.algorithm.plan",
    "Policy": "fedforget.requests.policy",
    "Rebuilt": "fedforget.evidence.rebuild",
    "ReceiptCheck": "fedforget.evidence.receipts.check",
    "Receipt": "fedforget.requests.lifecycle",
    "Request": "fedforget.algorithm.forget",
    "Run": "fedforget.run",
    "ServerOptimizer": "fedforget.algorithm.plan",
    "Status": "fedforget.session.status",
    "Verification": "fedforget.evidence.replay",
    "forgetting_cost": "fedforget.planner.costs",
    "read_receipt": "fedforget.evidence.receipts.check",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


def __getattr__(name: str) -> Any:
    """Load on first use: importing the package costs next to nothing."""
    if name in _HOMES:
        from importlib import import_module  # noqa: PLC0415

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
