"""Signals of a placement: each gives one number in [0, 1] per candidate, 1 the best, and knows no other signal."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from policies.types import InstanceView

GRACE_S = 0.05
"""Added to times before they are compared: differences far below it are not worth a choice."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The instances that passed the filters, and what is known of each, in the same order."""

    views: Sequence[InstanceView]
    loads: Sequence[float]
    prompt_tokens: int
    reach_tokens: Sequence[int]
    """Known prefix, never above the prompt; unknown ones hold the mean of the known: they neither win nor lose."""
    wan_s: Sequence[float] = ()
    """How long missing KV would take to cross; empty where nothing crosses for this role."""
    session_ids: frozenset[str] = frozenset()


Scorer = Callable[[Candidates], list[float]]


def prefix(candidates: Candidates) -> list[float]:
    """Share of the prompt in cache, faded where the instance is busier than the mean.

    So a hot prefix draws requests until its holder is one full batch busier than the others, and then spreads.
    """
    loads, prompt = candidates.loads, candidates.prompt_tokens
    mean = sum(loads) / len(loads)
    full = 1.0 + mean
    return [
        reach / prompt if load <= mean else (reach / prompt * (full - load) if load < full else 0.0)
        for reach, load in zip(candidates.reach_tokens, loads, strict=True)
    ]


def queue(candidates: Candidates) -> list[float]:
    """Room in the batch: 1 when idle, a half when full, falling on while requests queue."""
    return [1.0 / (1.0 + load) for load in candidates.loads]


def kv(candidates: Candidates) -> list[float]:
    """Free share of the KV memory."""
    return [1.0 - usage if (usage := view.kv_usage) < 1.0 else 0.0 for view in candidates.views]


def session(candidates: Candidates) -> list[float]:
    """1 for the instances that served this conversation before."""
    return [1.0 if view.id in candidates.session_ids else 0.0 for view in candidates.views]


def wan(candidates: Candidates) -> list[float]:
    """How soon missing KV would have crossed, against the soonest."""
    return _against_shortest(candidates.wan_s) if candidates.wan_s else [1.0] * len(candidates.views)


def prefill(candidates: Candidates) -> list[float]:
    """How soon prefill would be done by the measured curves, against the soonest; the unmeasured take the mean."""
    prompt = candidates.prompt_tokens
    times = [
        None if view.curve is None else view.curve.at(prompt - reach)
        for view, reach in zip(candidates.views, candidates.reach_tokens, strict=True)
    ]
    known = [time for time in times if time is not None]
    if not known:
        return [1.0] * len(times)
    mean = sum(known) / len(known)
    return _against_shortest([mean if time is None else time for time in times])


def _against_shortest(times_s: Sequence[float]) -> list[float]:
    shortest = min(times_s) + GRACE_S
    return [shortest / (time_s + GRACE_S) for time_s in times_s]


SIGNALS: Mapping[str, Scorer] = {
    "prefix": prefix,
    "queue": queue,
    "kv": kv,
    "session": session,
    "wan": wan,
    "prefill": prefill,
}
"""Every signal under the name that its weight has in the rules."""
