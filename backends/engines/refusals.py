"""What an engine's error amounts to. Messages may quote the prompt, so none gets into an exception's text."""

import json

from backends.errors import BackendError, EngineFailed, EngineRejected, EngineUnavailable


def refusal(status: int, body: bytes, retry_after_s: float | None = None) -> BackendError:
    """Judge an answer that is no stream by its status and its error object."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        fields = None
    return judge(status, *error_text(fields.get("error", fields) if isinstance(fields, dict) else None), retry_after_s)


def judge(status: int, message: str, param: str | None, retry_after_s: float | None = None) -> BackendError:
    """Judge an error by its status and what it says."""
    if status in (429, 503):
        return EngineUnavailable(f"engine answered {status}", retry_after_s)
    if status in (401, 403, 407):
        return EngineFailed(f"engine answered {status}: it does not take the configured API key")
    if 400 <= status < 500:
        return EngineRejected(status, message or f"The engine answered {status}.", param)
    if status >= 500 and "maximum context length" in message.lower():
        return EngineRejected(400, message, param)
    return EngineFailed(f"engine answered {status}")


def error_text(error: object) -> tuple[str, str | None]:
    """Return message and param of OpenAI's error object, of vLLM's older flat one, or of FastAPI's ``detail``."""
    if isinstance(error, str):
        return error, None
    if not isinstance(error, dict):
        return "", None
    message, param = error.get("message") or error.get("detail"), error.get("param")
    return message if isinstance(message, str) else "", param if isinstance(param, str) else None


def safe_word(value: object) -> str:
    """Return a value of the engine's, made safe to log."""
    return "".join(c for c in str(value)[:40] if c.isascii() and (c.isalnum() or c in "_-.")) or "unknown"
