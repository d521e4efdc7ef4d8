"""The errors that FedForget raises on purpose. Each states the fact, the place and the remedy.

    FedForgetError
      InvalidInput            the caller can correct the call          (exit 3)
        UnknownTarget           no such client or sample
        InvalidId               an invalid or duplicate id
        InvalidRequests         a request file that cannot be read
        NoSuchRun               the directory holds no run
        DataMissing             a dataset is in none of the places
        NotConfirmed            too much would be erased to do it unasked
      PlanRefused             the plan is impossible, or not this run's (exit 4)
      RunBusy                 another process has the run open          (exit 5)
      RunDamaged              a file of the run is torn or altered      (exit 6)
        CommitsLost             its databases contradict each other
      RunTooNew               made by a newer version                   (exit 7)
      DataChanged             the data are not those the run knows      (exit 8)
        DataDamaged             a file of a dataset is truncated or altered
      TrainingFailed          a client could not finish its round       (exit 9)
        NonFiniteLoss           its loss or weights became NaN or infinite
        SignatureRefused        its answer is not signed with its key
      StorageFailed           the operating system refused a write      (exit 10)
      ModelWithdrawn          every client was erased: there is no model (exit 11)
      UnfinishedRequest       an interrupted request must be finished first (exit 12)
      ReceiptRefused          a signed receipt is not what it says     (exit 13)
      OutOfMemory             there is not enough memory               (exit 14)
      LearnerDiffers          the module or the loss is not the run's   (exit 15)
      EnvironmentDiffers      other hardware or libraries compute here  (exit 16)
      AttentionNeeded         a request is overdue or unfinished       (exit 17)
      RunTooOld               made by an older version                  (exit 18)
      ClientUnreachable       a client has not answered in time        (exit 19)

The library raises these; only the command line turns them into exit codes.
"""

from __future__ import annotations

_NO_MEMORY = 12  # errno.ENOMEM, the same on every system; this module imports nothing
_LONGEST_WORD, _LONGEST_MESSAGE = 80, 8000  # characters


def shown(value: object) -> str:
    """Format a user's value for a message: one short line without terminal control sequences."""
    text = str.__str__(value) if isinstance(value, str) else _repr(value)
    if len(text) <= _LONGEST_WORD:
        return escaped(text)
    return f"{escaped(text[: _LONGEST_WORD // 2])}… ({len(text)} characters)"


def _repr(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 (an integer of more than 4300 digits, or a user's own class)
        return f"a {type(value).__name__}"


def quoted(value: object) -> str:
    """Like ``shown``, with strings in quotation marks."""
    return f"'{shown(value)}'" if isinstance(value, str) else shown(value)


def escaped(text: str) -> str:
    """Escape control characters, line breaks, escape sequences and marks that change the writing direction."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


class FedForgetError(Exception):
    """An error with a stable ``code``, a one-line message, and a hint that names the remedy."""

    code = "error"
    exit_code = 1
    usual_hint = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        self.message = _one_line(message)
        self.hint = _one_line(hint or self.usual_hint)
        super().__init__(self.message)

    def __reduce__(self) -> tuple[object, ...]:
        return _restored, (type(self), self.message, self.hint)  # worker processes pickle their errors

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


def _one_line(text: str) -> str:
    if len(text) > _LONGEST_MESSAGE:
        text = f"{text[:_LONGEST_MESSAGE]}… ({len(text)} characters)"
    return escaped(text)


def _restored(kind: type[FedForgetError], message: str, hint: str) -> FedForgetError:
    return kind(message, hint=hint)


class InvalidInput(FedForgetError):
    code = "invalid-input"
    exit_code = 3


class UnknownTarget(InvalidInput):
    code = "unknown-target"


class InvalidId(InvalidInput):
    code = "invalid-id"


class InvalidRequests(InvalidInput):
    code = "invalid-requests"


class NoSuchRun(InvalidInput):
    code = "no-such-run"


class DataMissing(InvalidInput):
    code = "data-missing"


class NotConfirmed(InvalidInput):
    code = "not-confirmed"


class PlanRefused(FedForgetError):
    code = "plan-refused"
    exit_code = 4


class RunBusy(FedForgetError):
    code = "run-busy"
    exit_code = 5


class RunDamaged(FedForgetError):
    code = "run-damaged"
    exit_code = 6
    usual_hint = "restore it from a backup; see `fedforget doctor`"


class CommitsLost(RunDamaged):
    code = "commits-lost"


class RunTooNew(FedForgetError):
    code = "run-too-new"
    exit_code = 7


class DataChanged(FedForgetError):
    code = "data-changed"
    exit_code = 8


class DataDamaged(DataChanged):
    code = "data-damaged"


class TrainingFailed(FedForgetError):
    code = "training-failed"
    exit_code = 9


class NonFiniteLoss(TrainingFailed):
    code = "non-finite-loss"


class SignatureRefused(TrainingFailed):
    code = "signature-refused"


class StorageFailed(FedForgetError):
    code = "storage-failed"
    exit_code = 10


class ModelWithdrawn(FedForgetError):
    code = "model-withdrawn"
    exit_code = 11


class UnfinishedRequest(FedForgetError):
    code = "unfinished-request"
    exit_code = 12


class ReceiptRefused(FedForgetError):
    code = "receipt-refused"
    exit_code = 13


class OutOfMemory(FedForgetError):
    code = "out-of-memory"
    exit_code = 14


class LearnerDiffers(FedForgetError):
    code = "learner-differs"
    exit_code = 15


class EnvironmentDiffers(FedForgetError):
    code = "environment-differs"
    exit_code = 16


class AttentionNeeded(FedForgetError):
    code = "attention-needed"
    exit_code = 17


class RunTooOld(FedForgetError):
    code = "run-too-old"
    exit_code = 18


class ClientUnreachable(FedForgetError):
    code = "client-unreachable"
    exit_code = 19


def is_lack_of_memory(error: BaseException) -> bool:
    """Return whether an error of Python, the operating system or torch reports a lack of memory."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == _NO_MEMORY):
        return True
    return isinstance(error, RuntimeError) and any(
        words in str(error) for words in ("can't allocate memory", "not enough memory", "Cannot allocate memory")
    )
