"""The operator's page in a real browser, before two real regions and two gateways that share their state."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, ConsoleMessage, Page, Request, async_playwright

from tests.integration.forks import ForkedKit, Forker
from tests.integration.regions import RELAYED, Regions, open_front, open_regions

RULES: dict[str, Any] = RELAYED | {"slo": {"ttft_s": 30.0, "total_s": 120.0}}
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


def find_chromium() -> str | None:
    """Return where a Chromium is; None: nowhere."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


@dataclass(slots=True)
class Sites:
    """Two gateways before one fleet."""

    regions: Regions
    second: Regions


@dataclass
class Seen:
    """A page, and what it must not have done."""

    page: Page
    base_url: str
    complaints: list[str] = field(default_factory=list)
    origins: set[str] = field(default_factory=set)

    def note_message(self, message: ConsoleMessage) -> None:
        """Keep errors and warnings of the page."""
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.text} ({message.location.get('url')})")

    def note_request(self, request: Request) -> None:
        """Keep whom the page asks."""
        self.origins.add("/".join(request.url.split("/")[:3]))

    async def open(self, view: str) -> None:
        """Show a view, and wait until it is live."""
        await self.page.goto(f"{self.base_url}/ui#{view}")
        await self.page.wait_for_selector("#live.on")


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def sites(forker: Forker) -> AsyncIterator[Sites]:
    """One P, one RLD, two MD, and two gateways."""
    async with (
        open_regions((1, 1, 2), RULES, kit=ForkedKit(forker)) as regions,
        open_front(regions.cluster, {"rules": RULES}, seed=1_000_000) as second,
    ):
        yield Sites(regions, second)


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def browser() -> AsyncIterator[Browser]:
    """A headless Chromium."""
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("NOT RUN: no Chromium is here; install Debian's `chromium`, or name one in CHROMIUM")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        await browser.close()


@asynccontextmanager
async def open_page(browser: Browser, base_url: str, **options: Any) -> AsyncIterator[Seen]:
    """Give a page of its own, which must end without a complaint and without having asked anybody else."""
    context = await browser.new_context(**({"viewport": WIDE} | options))
    page = await context.new_page()
    seen = Seen(page, base_url)
    page.on("console", seen.note_message)
    page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    page.on("request", seen.note_request)
    try:
        yield seen
        assert seen.complaints == []
        assert seen.origins <= {base_url}
    finally:
        await context.close()
