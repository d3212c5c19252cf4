"""What the dialects of engines share: ids counted, refusals judged, log-probabilities bounded, metrics read. No I/O."""

import json
import math
import re
from collections.abc import Iterable

from backends.errors import BackendError, EngineBroken, EngineFailed, EngineRejected, EngineUnavailable, IdsMissing


class IdTally:
    """``tokens``: how many ids came so far."""

    def __init__(self) -> None:
        self.tokens = 0
        self._has_finish = False

    def add(self, count: int, made_tokens: int | None = None) -> None:
        """So many ids came; ``made_tokens``: the engine says how many it made in all.

        Raises EngineBroken after the finish_reason, IdsMissing when some did not come.
        """
        if count and self._has_finish:
            raise EngineBroken("token ids after the finish_reason")
        self.tokens += count
        if made_tokens is not None and made_tokens > self.tokens:
            raise IdsMissing(f"{made_tokens} tokens were made, ids of {self.tokens} came")

    def finish(self) -> None:
        """The finish_reason came."""
        self._has_finish = True

    def end(self) -> None:
        """[DONE] came. Raises EngineBroken without a finish_reason, IdsMissing without any id."""
        if not self._has_finish:
            raise EngineBroken("[DONE] without a finish_reason")
        if not self.tokens:
            raise IdsMissing("the answer ended without any token id")


LOWEST_LOGPROB = -9999.0
"""Stands for a log-probability that is not a finite number, as in vLLM's own answers."""


def finite(logprob: float | None) -> float:
    """Return a log-probability as a finite number."""
    return logprob if logprob is not None and math.isfinite(logprob) else LOWEST_LOGPROB


def likeliest(entries: Iterable[tuple[int, float | None]], count: int) -> tuple[tuple[int, float], ...]:
    """Return the ``count`` likeliest of token ids with their log-probabilities, the likeliest first."""
    pairs = sorted(((token_id, finite(logprob)) for token_id, logprob in entries), key=lambda pair: -pair[1])
    return tuple(pairs[:count])


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


_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def read_samples(text: str, name: str) -> list[float]:
    """Values of all series called ``name``, in order; those that are not finite numbers are left out."""
    values = (_read_value(rest) for _, rest in _series(text, name))
    return [value for value in values if value is not None]


def read_by_label(text: str, name: str, label: str) -> dict[str, float]:
    """Values of the series called ``name``, added up by the value of ``label``; see ``read_samples``."""
    values: dict[str, float] = {}
    for labels, rest in _series(text, name):
        mark, value = dict(_LABEL.findall(labels)).get(label), _read_value(rest)
        if mark is not None and value is not None:
            values[mark] = values.get(mark, 0.0) + value
    return values


def find_label(text: str, name: str, label: str) -> str | None:
    """Value of ``label`` in the first series called ``name`` that has it."""
    for labels, _ in _series(text, name):
        for key, value in _LABEL.findall(labels):
            if key == label:
                return str(value)
    return None


def _read_value(rest: str) -> float | None:
    try:
        value = float(rest.split()[0])
    except (ValueError, IndexError):
        return None
    return value if math.isfinite(value) else None


def _series(text: str, name: str) -> list[tuple[str, str]]:
    """Labels and the rest of the line (value, perhaps a timestamp) of each series called ``name``."""
    pattern = rf"^{re.escape(name)}(\{{.*\}})?[ \t]+(.*)$"
    return [(match[1] or "", match[2]) for match in re.finditer(pattern, text, re.MULTILINE)]
