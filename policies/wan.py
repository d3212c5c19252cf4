"""How long the KV that MD lacks takes to cross a WAN link.

The KV store holds full chunks only, so a hit counts down to its chunk and the prompt's tail never crosses. A bridge
shares its link fairly and lets small transfers go first, so while a transfer runs each other one gets at most as many
bytes as it: a small one does not wait for all that is queued by large ones. Where engines fetch KV themselves nobody
orders the transfers or sees how far they are: then all that is queued counts. What a bridge moves for later use
only lets new transfers go first, and is no part of a link's queue here.
"""

import math
from collections.abc import Iterable

from policies.types import Estimate, Hit, InstanceView, LinkView, Snapshot


def missing_tokens(prompt_tokens: int, reach_tokens: int, chunk_tokens: int) -> int:
    """Tokens, in full chunks, that must cross when the receiver has the first ``reach_tokens``."""
    return max(0, prompt_tokens // chunk_tokens - reach_tokens // chunk_tokens) * chunk_tokens


def crossing_s(wan_bytes: int, link: LinkView) -> float:
    """Seconds until ``wan_bytes`` more have crossed behind what is queued; 0 when there is nothing to move."""
    if wan_bytes == 0:
        return 0.0
    return (bytes_ahead(wan_bytes, link) + wan_bytes) / link.rate_bytes_per_s + link.rtt_s


def soonest_s(wan_bytes: int, links: Iterable[LinkView | None]) -> float:
    """Seconds until ``wan_bytes`` have crossed on the best of ``links`` (at least one); None crosses nothing."""
    soonest = math.inf
    for link in links:
        if link is None:
            return 0.0
        seconds = crossing_s(wan_bytes, link)
        if seconds < soonest:
            soonest = seconds
    return soonest


def bytes_ahead(wan_bytes: int, link: LinkView) -> int:
    """Bytes of other transfers that cross before the last of ``wan_bytes`` new ones."""
    if link.open_transfers is None or not link.reports_progress:
        return link.queued_bytes
    return min(link.queued_bytes, link.open_transfers * wan_bytes)


def wait_after_prefill_s(
    estimate: Estimate, prompt_tokens: int, prefill: InstanceView, hit: Hit | None
) -> float | None:
    """Seconds from P's end until MD has the KV; None: unknown. ``hit``: P's.

    While P computes, what P has cached and MD lacks crosses, once what is queued has. The KV that P computes is all
    still to come: of most prompts that is one chunk, which P stores when it has ended. That the queue gets shorter
    meanwhile does not count: on a busy line others join it, and in simulations gaps grew threefold where it did.
    """
    if estimate.total_s is None or estimate.missing_tokens is None or estimate.transfer_s is None:
        return None
    if prefill.curve is None or hit is None or estimate.queue_s is None or not estimate.missing_tokens:
        return estimate.total_s
    uncached = max(1, prompt_tokens - hit.reach_tokens)
    early_s = estimate.transfer_s * max(0, estimate.missing_tokens - uncached) / estimate.missing_tokens
    return estimate.total_s - max(0.0, min(prefill.curve.at(uncached) - estimate.queue_s, early_s))


def estimate_transfer(prompt_tokens: int, hit: Hit | None, link: LinkView, snapshot: Snapshot) -> Estimate:
    """Estimate the transfer of a prompt's KV over ``link`` to an MD with ``hit``; None: the hit is unknown."""
    chunk = snapshot.kv_chunk_tokens
    worst_s = crossing_s(missing_tokens(prompt_tokens, 0, chunk) * snapshot.kv_bytes_per_token, link)
    if hit is None:
        return Estimate(None, prompt_tokens % chunk, None, None, None, link.rtt_s, None, worst_s)
    missing = missing_tokens(prompt_tokens, hit.reach_tokens, chunk)
    wan_bytes = missing * snapshot.kv_bytes_per_token
    return Estimate(
        missing_tokens=missing,
        tail_tokens=max(0, prompt_tokens - max(prompt_tokens // chunk * chunk, hit.reach_tokens)),
        wan_bytes=wan_bytes,
        queue_s=bytes_ahead(wan_bytes, link) / link.rate_bytes_per_s,
        transfer_s=wan_bytes / link.rate_bytes_per_s,
        rtt_s=link.rtt_s,
        total_s=crossing_s(wan_bytes, link),
        worst_s=worst_s,
    )
