"""Prefill time against uncached tokens, and where it pays to stay away from.

Time does not grow evenly with the uncached part of a prompt: schedulers cut it into chunks, and a small last chunk that
cannot be batched costs a step of its own. Where a shorter uncached part costs more than a longer one there is a valley.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class PrefillCurve:
    """Measured prefill times of one engine: ``seconds[i]`` for ``tokens[i]`` uncached tokens, tokens ascending."""

    tokens: tuple[int, ...]
    seconds: tuple[float, ...]
    _slopes: tuple[float, ...] = field(init=False, repr=False, compare=False)
    """From each point to the next; the last goes on from the last point, and never falls."""

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.seconds) or len(self.tokens) < 2:
            raise ValueError("a curve needs two or more points, each with tokens and seconds")
        if any(a >= b for a, b in pairwise(self.tokens)) or self.tokens[0] < 0:
            raise ValueError("tokens must ascend from 0 or more")
        if min(self.seconds) <= 0:
            raise ValueError("seconds must be positive")
        points = zip(self.tokens, self.seconds, strict=True)
        slopes = [(y1 - y0) / (x1 - x0) for (x0, y0), (x1, y1) in pairwise(points)]
        object.__setattr__(self, "_slopes", (*slopes, max(0.0, slopes[-1])))

    def at(self, uncached_tokens: int) -> float:
        """Seconds to prefill: linear between points, flat before the first, on by the last slope (0 or more) after."""
        left = bisect_left(self.tokens, uncached_tokens) - 1
        if left < 0:
            return self.seconds[0]
        return self.seconds[left] + self._slopes[left] * (uncached_tokens - self.tokens[left])


@dataclass(frozen=True, slots=True)
class Step:
    """A jump: between two neighbouring points time rises by ``jump_s`` more than the curve's usual slope explains."""

    from_tokens: int
    to_tokens: int
    jump_s: float


@dataclass(frozen=True, slots=True)
class Valley:
    """Uncached lengths, both ends measured, that cost up to ``excess_s`` more than the longer ``better_tokens``."""

    from_tokens: int
    to_tokens: int
    better_tokens: int
    excess_s: float


def find_steps(curve: PrefillCurve, share: float = 0.1) -> tuple[Step, ...]:
    """Find jumps of at least ``share`` of the time before them."""
    points = list(zip(curve.tokens, curve.seconds, strict=True))
    slopes = sorted((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(points))
    usual = max(0.0, slopes[len(slopes) // 2])
    steps = []
    for (x0, y0), (x1, y1) in pairwise(points):
        jump = (y1 - y0) - usual * (x1 - x0)
        if jump >= share * y0:
            steps.append(Step(x0, x1, jump))
    return tuple(steps)


def find_valleys(curve: PrefillCurve, tolerance: float = 0.02) -> tuple[Valley, ...]:
    """Find where a longer uncached part is cheaper by more than ``tolerance`` of its time, in ascending order."""
    valleys: list[Valley] = []
    best = len(curve.tokens) - 1
    for index in range(best - 1, -1, -1):
        seconds, floor = curve.seconds[index], curve.seconds[best]
        if seconds <= floor:
            best = index
        elif seconds > floor * (1 + tolerance):
            tokens, better = curve.tokens[index], curve.tokens[best]
            if valleys and valleys[-1].better_tokens == better:
                last = valleys[-1]
                valleys[-1] = Valley(tokens, last.to_tokens, better, max(last.excess_s, seconds - floor))
            else:
                valleys.append(Valley(tokens, tokens, better, seconds - floor))
    return tuple(reversed(valleys))
