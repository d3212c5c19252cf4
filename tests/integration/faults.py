"""What tests with two regions do to them, and when."""

from collections.abc import Awaitable, Callable

from tests.integration.regions import Regions


def watch_admission(regions: Regions) -> Callable[[], Awaitable[bool]]:
    """Return what says whether the gateway has taken a request since now."""
    before = regions.newest_timeline().get("request_id")

    async def is_admitted() -> bool:
        return bool(regions.newest_timeline().get("request_id") != before)

    return is_admitted


async def kill_bridge(regions: Regions) -> None:
    """End the bridge without a word, and let its supervisor start it again."""
    regions.cluster.children["bridge"].kill()
    await regions.restart("bridge")


async def cut_link(regions: Regions) -> None:
    """Break all connections between the regions for a while."""
    await regions.control_wan("cut", for_s=0.5)
