"""Why something cannot be done, as clients and operators are told."""


def reason_of(error: Exception) -> str:
    """Return what an operator is told of a failure; a time-out says nothing of itself."""
    return str(error) or "no answer in time"


class GenerationFailed(Exception):
    """An answer cannot start or go on. ``status`` is the HTTP status; ``code`` and ``param`` are OpenAI's."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s
