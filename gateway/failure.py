"""Why an answer cannot be given: raised at any depth, and shown to the client by the API layer."""


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
