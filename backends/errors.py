"""Failures at the engine seam.

BackendError
  EngineUnavailable   nothing was accepted: connection refused, reset before any byte, 429/503 (safe to retry elsewhere)
  EngineRejected      the engine refused the request itself (4xx): another instance would refuse it too
  EngineFailed        the engine accepted and failed (5xx, an error event, finish_reason "abort" or "error")
  EngineBroken        the stream was cut, or was not the dialect that was agreed on
    IdsMissing        tokens were made whose ids never came: what this engine says cannot be continued elsewhere
  EngineTimeout       no token within the leg's time limits
  TransferFailed      a KV transfer cannot complete
    KvWrongSize       the KV that is there is not that of the model: it would be of no use
"""


class BackendError(Exception):
    """Base of all failures of a backend; ``str()`` is safe to log (no prompt or completion text)."""


class EngineUnavailable(BackendError):
    """The engine did not accept the leg."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineRejected(BackendError):
    """The engine refused the leg with a 4xx: ``status``, and the OpenAI error's ``message`` and ``param``."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(f"engine answered {status}")
        self.status = status
        self.message = message
        self.param = param


class EngineFailed(BackendError):
    """The engine accepted the leg and failed."""


class EngineBroken(BackendError):
    """The stream ended without its proper end."""


class IdsMissing(EngineBroken):
    """The engine streams fewer token ids than it makes tokens."""


class EngineTimeout(BackendError):
    """The engine was silent for too long."""


class TransferFailed(BackendError):
    """A KV transfer ended without all of its chunks."""


class KvWrongSize(TransferFailed):
    """The KV in the sending store has another size than the model's."""
