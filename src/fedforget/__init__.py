"""FedForget: exact federated unlearning.

from fedforget import Plan, Request, Run
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.3.0.dev0"

if TYPE_CHECKING:
    from fedforget.algorithm.forget import Request
    from fedforget.algorithm.plan import LocalOptimizer, Plan, ServerOptimizer
    from fedforget.algorithm.theory import ForgettingCost, Loss, forgetting_cost
    from fedforget.errors import FedForgetError
    from fedforget.evidence.receipts import ReceiptCheck, read_receipt
    from fedforget.evidence.replay import Verification
    from fedforget.overview import Status
    from fedforget.run import Run
    from fedforget.store.policy import Policy
    from fedforget.store.requests import Receipt

__all__ = [
    "FedForgetError",
    "ForgettingCost",
    "LocalOptimizer",
    "Loss",
    "Plan",
    "Policy",
    "Receipt",
    "ReceiptCheck",
    "Request",
    "Run",
    "ServerOptimizer",
    "Status",
    "Verification",
    "__version__",
    "forgetting_cost",
    "read_receipt",
]

_HOMES = {
    "FedForgetError": "fedforget.errors",
    "ForgettingCost": "fedforget.algorithm.theory",
    "LocalOptimizer": "fedforget.algorithm.plan",
    "Loss": "fedforget.algorithm.theory",
    "Plan": "fedforget.algorithm.plan",
    "Policy": "fedforget.store.policy",
    "ReceiptCheck": "fedforget.evidence.receipts",
    "Receipt": "fedforget.store.requests",
    "Request": "fedforget.algorithm.forget",
    "Run": "fedforget.run",
    "ServerOptimizer": "fedforget.algorithm.plan",
    "Status": "fedforget.overview",
    "Verification": "fedforget.evidence.replay",
    "forgetting_cost": "fedforget.algorithm.theory",
    "read_receipt": "fedforget.evidence.receipts",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


def __getattr__(name: str) -> Any:
    """Load on first use: importing the package costs next to nothing."""
    if name in _HOMES:
        from importlib import import_module  # noqa: PLC0415

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
