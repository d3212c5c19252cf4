"""The operator's page in a browser: every view, its colours, its changes, and by keyboard alone."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from tests.integration.regions import eventually
from tests.ui.conftest import NARROW, WIDE, Sites, open_page

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="session")]

CHECKS = Path(__file__).with_name("checks.js").read_text()
VIEWS = {
    "fleet": "article.tile",
    "requests": "tbody tr",
    "playground": "button.main",
    "decisions": "h2:has-text('Model demo')",
    "rules": "#verdict.ok",
    "money": "table",
}
EMPTY: dict[str, Any] = {
    "gateway": {
        "self": {
            "version": "0",
            "missing": ["rules: Redis does not answer"],
            "degraded": [],
            "draining": True,
            "redis_up": False,
            "gateways": 1,
            "revision": 0,
            "refusals": [],
            "waiting": 0,
            "aligning": 0,
            "price_per_hour": 0,
        }
    }
}


async def picture(page: Page, name: str) -> None:
    """Keep a screenshot where SCREENS names a folder."""
    if folder := os.environ.get("SCREENS"):
        await page.screenshot(path=f"{folder}/{name}.png", full_page=True)


async def ask_in_playground(page: Page, words: int, tokens: int) -> list[Any]:
    """Ask, wait for the answer's end, and return the events that came."""
    await page.get_by_label("Filler before it, words").fill(str(words))
    await page.get_by_label("Answer tokens at most").fill(str(tokens))
    async with page.expect_response("**/v1/chat/completions") as waiting:
        await page.get_by_role("button", name="Ask").click()
    response = await waiting.value
    await expect(page.get_by_role("button", name="Ask")).to_be_enabled(timeout=120_000)
    lines = (await response.text()).splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


async def test_a_relayed_answer_has_the_colours_of_its_trace(sites: Sites, browser: Browser) -> None:
    """Each stretch of text is in the colour of who made it, joints are marked, and the timeline is drawn."""
    async with open_page(browser, sites.regions.base_url) as seen:
        await seen.open("playground")
        with sites.regions.relay_kept_to(200, of=400):
            told = await ask_in_playground(seen.page, 250, 400)
        stretches: list[list[str]] = []
        for event in told:
            for choice in event["choices"]:
                text, role = choice["delta"].get("content") or "", event.get("pdd", {}).get("role", "")
                if text and stretches and stretches[-1][0] == role:
                    stretches[-1][1] += text
                elif text:
                    stretches.append([role, text])
        shown = await seen.page.locator(".answer span[data-role]").evaluate_all(
            "all => all.map((one) => [one.dataset.role, one.textContent])"
        )
        assert shown == stretches and [role for role, _ in shown] == ["P", "RLD", "MD"]
        colours = await seen.page.locator(".answer span[data-role]").evaluate_all(
            "all => all.map((one) => getComputedStyle(one).color)"
        )
        assert len(set(colours)) == 3
        assert await seen.page.locator(".answer .joint").count() == 2
        await expect(seen.page.locator("svg.timeline")).to_have_attribute(
            "aria-label", re.compile("(?=.*final on md)(?=.*KV over)")
        )
        await picture(seen.page, "playground-answer")


async def test_naive_stands_beside_it(sites: Sites, browser: Browser) -> None:
    """The comparison asks for the naive plan, whose tokens are all MD's."""
    async with open_page(browser, sites.regions.base_url) as seen:
        sites.regions.use({"direct_wan_bound_s": 0})
        await seen.open("playground")
        await seen.page.get_by_label("naive beside it").check()
        await ask_in_playground(seen.page, 250, 60)
        roles = (
            await seen.page.locator(".answer")
            .nth(1)
            .locator("span[data-role]")
            .evaluate_all("all => all.map((one) => one.dataset.role)")
        )
        assert set(roles) == {"MD"}
        await picture(seen.page, "playground-naive")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
async def test_every_view_can_be_read(sites: Sites, browser: Browser, scheme: str, size: dict[str, int]) -> None:
    """Names, contrast and width hold in each view, light and dark, wide and narrow."""
    async with sites.regions.ask(tokens=8) as asked:
        await asked.read()
    async with open_page(browser, sites.regions.base_url, viewport=size, color_scheme=scheme) as seen:
        for view, sign in VIEWS.items():
            await seen.open(view)
            await seen.page.locator(sign).first.wait_for()
            assert await seen.page.evaluate(CHECKS) == [], view
            await picture(seen.page, f"{view}-{scheme}-{size['width']}")


async def test_states_without_anything_are_told(sites: Sites, browser: Browser) -> None:
    """No engines, no requests, no Redis and a gateway that ends: each view says so."""
    body = f"event: state\ndata: {json.dumps({'sections': EMPTY, 'points': []})}\n\n"
    async with open_page(browser, sites.regions.base_url) as seen:
        await seen.page.route(
            "**/admin/events", lambda route: route.fulfill(body=body, content_type="text/event-stream")
        )
        await seen.page.goto(f"{seen.base_url}/ui#fleet")
        await expect(seen.page.locator("#banners")).to_contain_text("Redis does not answer")
        await expect(seen.page.locator("#banners")).to_contain_text("shutting down")
        await expect(seen.page.locator("main")).to_contain_text("No engines are configured")
        for view, text in {"requests": "No requests yet", "money": "Nothing was used"}.items():
            await seen.page.goto(f"{seen.base_url}/ui#{view}")
            await expect(seen.page.locator("main")).to_contain_text(text)
        await picture(seen.page, "empty")


async def test_an_engine_is_drained_from_its_tile(sites: Sites, browser: Browser) -> None:
    """Only after a confirmation, and for both gateways; the same button puts it back."""
    async with open_page(browser, sites.regions.base_url) as seen:
        await seen.open("fleet")
        tile = seen.page.get_by_role("article", name="MD md2")
        await tile.get_by_role("button", name="Drain md2").click()
        await seen.page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        assert not sites.regions.gateway.pools["md2"].draining
        await tile.get_by_role("button", name="Drain md2").click()
        await picture(seen.page, "fleet-drain")
        await seen.page.get_by_role("dialog").get_by_role("button", name="Drain").click()
        await expect(tile.locator(".state")).to_have_text("draining")

        async def both(draining: bool) -> bool:
            gateways = (sites.regions.gateway, sites.second.gateway)
            return all(one.pools["md2"].draining is draining for one in gateways)

        assert await eventually(lambda: both(True), 10)
        await tile.get_by_role("button", name="Put back md2").click()
        await seen.page.get_by_role("dialog").get_by_role("button", name="Put back").click()
        assert await eventually(lambda: both(False), 10)
        await expect(tile.locator(".state")).to_have_text("up")


async def test_rules_are_pushed_to_all_gateways_and_taken_back(sites: Sites, browser: Browser) -> None:
    """Errors show while typing, a push is acknowledged by both gateways, an old version comes back by its button."""
    async with open_page(browser, sites.regions.base_url) as seen:
        await seen.open("rules")
        page = seen.page
        editor, verdict, push = (
            page.get_by_label("Rules as JSON"),
            page.locator("#verdict"),
            page.get_by_role("button", name="Push"),
        )
        await editor.fill('{"handoff": {"mode": "often"}}')
        await expect(verdict).to_contain_text("handoff.mode")
        await expect(push).to_be_disabled()
        seen.complaints.clear()  # the browser's own note of the 400
        await editor.fill('{"slo": {"ttft_s": 5}}')
        await expect(verdict).to_have_text("Valid.")
        await picture(page, "rules-edited")
        await push.click()
        await page.get_by_role("dialog").get_by_role("button", name="Push").click()
        await expect(page.locator("main")).to_contain_text("applied by 2 of 2 gateways", timeout=30_000)
        assert sites.second.gateway.rulebook.of("default").slo.ttft_s == 5
        await editor.fill("{}")
        await expect(page.locator(".diff")).to_contain_text('-   "slo"')
        await page.get_by_role("button", name="Delete").click()
        await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        await expect(page.get_by_role("button", name="Put version 1 in the editor")).to_be_visible()
        await page.get_by_role("button", name="Put version 1 in the editor").click()
        await expect(editor).to_have_value('{\n  "slo": {\n    "ttft_s": 5\n  }\n}')


async def test_everything_is_reached_by_keyboard(sites: Sites, browser: Browser) -> None:
    """Skip link, views, a request's timeline and a decision, without a mouse."""
    async with sites.regions.ask(tokens=4) as asked:
        await asked.read()
    async with open_page(browser, sites.regions.base_url) as seen:
        page = seen.page
        await seen.open("fleet")
        await page.keyboard.press("Tab")
        await expect(page.locator(".skip")).to_be_focused()
        for _ in range(2):
            await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="Requests")).to_be_focused()
        await page.keyboard.press("Enter")
        link = page.get_by_role("link", name="chatcmpl").first
        await link.wait_for()
        for _ in range(40):
            await page.keyboard.press("Tab")
            if await link.evaluate("one => one === document.activeElement"):
                break
        await expect(link).to_be_focused()
        await page.keyboard.press("Enter")
        await page.locator("svg.timeline").wait_for()
        await picture(page, "request")
        why = page.get_by_role("link", name="Why this plan?")
        await why.focus()
        await page.keyboard.press("Enter")
        await expect(page.locator("main")).to_contain_text("Candidates for MD")
        await picture(page, "decision")


async def test_no_script_of_others_runs(sites: Sites, browser: Browser) -> None:
    """The policy holds: a script in the page itself, or from elsewhere, is refused by the browser."""
    async with open_page(browser, sites.regions.base_url) as seen:
        await seen.open("fleet")
        await seen.page.evaluate(
            "() => { const one = document.createElement('script'); one.textContent = 'window.ran = true';"
            " document.head.append(one); }"
        )
        assert await seen.page.evaluate("window.ran") is None
        assert any("Content Security Policy" in text for text in seen.complaints)
        seen.complaints.clear()
        paints = await seen.page.evaluate("performance.getEntriesByType('paint').map((one) => one.name)")
        assert "first-contentful-paint" in paints
