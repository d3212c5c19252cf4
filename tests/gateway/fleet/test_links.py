"""What is known of the WAN links."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec

from backends.errors import TransferFailed
from backends.types import LinkState, PathTraits
from gateway.fleet.kv_terms import KvBook, KvTerms
from gateway.fleet.links import POLL_TIMEOUT_S, Link, Links
from gateway.telemetry.metrics import Metrics
from policies.types import LinkView
from policies.where import ANYWHERE
from tests.gateway.fleet.seams import ScriptedPath

MODEL = "demo"
MEASURED = LinkState(rate_bytes_per_s=5e6, queued_bytes=1000, rtt_s=0.03, up=True, wan_bytes_total=9, open_transfers=2)
VIEW = LinkView("a", "b", 5e6, 1000, 0.03, True, 2)


def build_link(path: ScriptedPath, source: str = "a", dest: str = "b", chunk_tokens: int = 256) -> Link:
    """A link of an assumed 1 MB/s."""
    return Link(source, dest, path, KvBook(KvTerms("lmcache", chunk_tokens)), 1e6)


@asynccontextmanager
async def run_links(*links: Link, interval_s: float = 60.0) -> AsyncGenerator[Links, None]:
    """Keep links fresh until the block ends."""
    running = Links(links, interval_s)
    await running.start()
    try:
        yield running
    finally:
        await running.aclose()


async def test_measurements_are_seen() -> None:
    """Policies see what the bridge has measured, and the assumed rate while it has measured none."""
    path = ScriptedPath(MEASURED)
    async with run_links(build_link(path)) as links:
        assert links.views(MODEL) == {("a", "b"): VIEW}
        path.state = msgspec.structs.replace(MEASURED, rate_bytes_per_s=0.0, open_transfers=None)
        await links.refresh()
        assert links.views(MODEL) == {("a", "b"): LinkView("a", "b", 1e6, 1000, 0.03, True, None)}
    assert path.is_closed


async def test_links_are_shown_beside_their_plan() -> None:
    """The gauges tell of each link whether it is up, its rate and the planned one; a link that left is not shown."""
    path, metrics = ScriptedPath(MEASURED), Metrics()
    async with run_links(build_link(path)) as links:
        links.show_metrics(metrics)
        assert metrics.kv.links.values == {("a->b",): (True, 5e6, 1e6)}
        path.error = TransferFailed("away")
        await links.refresh()
        links.show_metrics(metrics)
        assert metrics.kv.links.values == {("a->b",): (False, 1e6, 1e6)}
        links.replace({})
        links.show_metrics(metrics)
        assert not metrics.kv.links.values


async def test_what_is_for_later_is_not_ahead_of_anybody() -> None:
    """Transfers that let new ones go first count neither with their bytes nor with their number."""
    path = ScriptedPath(msgspec.structs.replace(MEASURED, queued_later_bytes=900, later_transfers=1))
    async with run_links(build_link(path)) as links:
        assert links.views(MODEL) == {("a", "b"): LinkView("a", "b", 5e6, 100, 0.03, True, 1)}


async def test_what_a_path_cannot_do_is_seen() -> None:
    """Policies see what the link's path can and cannot do, measured or not."""
    blind = PathTraits(can_stop=False, reports_progress=False, overlaps_prefill=False)
    path = ScriptedPath(MEASURED, traits=blind)
    async with run_links(build_link(path)) as links:
        for error in (None, TransferFailed("away")):
            path.error = error
            await links.refresh()
            view = links.views(MODEL)["a", "b"]
            assert not (view.can_stop or view.reports_progress or view.overlaps_prefill)


async def test_a_bridge_without_its_sender_is_down() -> None:
    """A bridge that cannot reach the sending store makes its link down."""
    path = ScriptedPath(msgspec.structs.replace(MEASURED, up=False))
    async with run_links(build_link(path)) as links:
        assert not links.views(MODEL)["a", "b"].up


async def test_a_bridge_that_is_away_makes_its_link_down() -> None:
    """While a bridge does not answer its link is down with nothing queued; once it answers, the link is up again."""
    path = ScriptedPath(MEASURED, error=TransferFailed("away"))
    async with run_links(build_link(path)) as links:
        down = LinkView("a", "b", 1e6, up=False)
        assert links.views(MODEL) == {("a", "b"): down}
        path.error = None
        await links.refresh()
        assert links.views(MODEL) == {("a", "b"): VIEW}
        path.error = TransferFailed("away again")
        await links.refresh()
        assert links.views(MODEL) == {("a", "b"): down}


async def test_links_are_asked_again_and_again() -> None:
    """A running watch picks up what changes."""
    path = ScriptedPath(MEASURED)
    async with run_links(build_link(path), interval_s=0.001) as links:
        path.state = msgspec.structs.replace(MEASURED, queued_bytes=7)
        asked = path.asked_times
        await path.asked.until(lambda: path.asked_times > asked + 1)
        assert links.views(MODEL)["a", "b"].queued_bytes == 7


async def test_a_hung_bridge_does_not_hide_others() -> None:
    """OPS-01: while one bridge never answers, what the other says is seen at once; the hung link is down in the end."""
    hung, well = ScriptedPath(MEASURED), ScriptedPath(MEASURED)
    async with run_links(build_link(hung), build_link(well, dest="c"), interval_s=0.001) as links:
        hung.hangs = True
        asked = hung.asked_times
        await hung.asked.until(lambda: hung.asked_times > asked)
        well.state = msgspec.structs.replace(MEASURED, queued_bytes=7)
        asked = well.asked_times
        await well.asked.until(lambda: well.asked_times > asked + 1, POLL_TIMEOUT_S / 2)
        assert links.views(MODEL)["a", "c"].queued_bytes == 7
        assert links.views(MODEL)["a", "b"].up
        await well.asked.until(lambda: not links.views(MODEL)["a", "b"].up)


async def test_links_are_found_by_their_regions() -> None:
    """A link is found by its two regions or by where it starts; the coarsest chunk holds for all."""
    one, other = build_link(ScriptedPath(MEASURED)), build_link(ScriptedPath(MEASURED), "c", "b", 512)
    links = Links([one, other], 60.0)
    assert links.get("a", "b", MODEL) is one
    assert links.get("b", "a", MODEL) is None
    assert links.first_from("c", ANYWHERE, MODEL) is other
    assert links.first_from("b", ANYWHERE, MODEL) is None
    assert links.chunk_tokens(MODEL) == 512
    assert Links([], 60.0).chunk_tokens(MODEL) == 1
    await links.aclose()
