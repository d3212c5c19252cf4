"""Measured prefill curves as JSON files: ``pdd profile`` writes them, the settings name them."""

from pathlib import Path

import msgspec

from policies.valley import PrefillCurve


class BadCurve(Exception):
    """A file holds no usable curve."""


class Measured(msgspec.Struct, frozen=True):
    """One measured prompt: median seconds to the first token, and of how many tries."""

    hit_rate: float
    prompt_tokens: int
    uncached_tokens: int
    seconds: float
    samples: int


class CurveFile(msgspec.Struct, frozen=True):
    """``tokens`` and ``seconds`` are the curve, taken from prompts without a hit; ``measured`` is all that was seen."""

    tokens: tuple[int, ...]
    seconds: tuple[float, ...]
    engine: str = ""
    model: str = ""
    measured: tuple[Measured, ...] = ()


def read_curve(path: Path) -> PrefillCurve:
    """Return the curve of a file. Raises BadCurve."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=CurveFile)
        return PrefillCurve(found.tokens, found.seconds)
    except OSError as error:
        raise BadCurve(f"cannot read {path}: {error.strerror}") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise BadCurve(f"{path}: {error}") from None


def write_curve(path: Path, curve: CurveFile) -> None:
    """Write a file that ``read_curve`` takes. Raises OSError."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(curve)) + b"\n")
