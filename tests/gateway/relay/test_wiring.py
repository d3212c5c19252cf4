"""What the relay tells the layers beside it: about whom, from which engine, and how often."""

from dataclasses import replace

import pytest

from backends.types import Sampling
from gateway.errors import GatewayError
from gateway.limits.usage import Use
from tests.fakes.script import Cut, Script
from tests.gateway.relay.stage import MODEL, LinkedPath, finish_of, ids_of, open_stage, read, rules_of, unsplit


class Booked:
    """Who was told to have used what."""

    def __init__(self) -> None:
        self.uses: dict[tuple[str, str], Use] = {}

    def note(self, tenant: str, model: str, use: Use) -> None:
        """Add it up."""
        self.uses.setdefault((tenant, model), Use()).add(use)


async def test_use_is_booked_on_whose_request_it_is() -> None:
    """Tokens by role, bytes over the line and promises are those of the tenant that asked, and of its model."""
    booked = Booked()
    async with open_stage(path=LinkedPath(is_instant=True, chunk_bytes=500)) as stage:
        service = replace(stage.service, note_use=booked.note)
        for tenant, tokens in (("acme", 40), ("other", 20), ("acme", 40)):
            await read(service.generate(stage.request(tenant=tenant, max_tokens=tokens)))
        await stage.quiet()
    assert booked.uses.keys() == {("acme", MODEL), ("other", MODEL)}
    acme, other = booked.uses["acme", MODEL], booked.uses["other", MODEL]
    assert (acme.p_tokens + acme.rld_tokens + acme.md_tokens, acme.p_tokens) == (80, 2)
    assert (other.p_tokens + other.rld_tokens + other.md_tokens, other.p_tokens) == (20, 1)
    assert (acme.wan_bytes, other.wan_bytes) == (2 * 12 * 500, 12 * 500)
    assert (acme.slo_met + acme.slo_missed, other.slo_met + other.slo_missed) == (2, 1)


async def test_a_tenants_answers_teach_of_that_tenant_alone() -> None:
    """How long an answer is expected to be follows from the tenant's own."""
    rules = {"output_length": {"min_samples": 1}}
    async with open_stage(rules, path=LinkedPath(is_instant=True)) as stage:
        await read(stage.ask(tenant="acme"))
        await read(stage.ask(tenant="other", max_tokens=7))
        await stage.quiet()
        used = stage.service.rulebook.of("acme")
        expected = [
            stage.service.learning.expected_output(MODEL, tenant, None, None, used)
            for tenant in ("acme", "other", "default")
        ]
    assert expected[2] is None and expected[0] is not None and expected[1] is not None
    assert expected[1] < 16 < expected[0]


@pytest.mark.parametrize("is_enabled", [True, False])
async def test_a_relay_that_becomes_singular_uses_the_budget(is_enabled: bool) -> None:
    """Where RLD was first and the transfer was stopped, the answer counts as a singular one; else none does."""
    rules = {"singular": {"enabled": is_enabled, "min_uncached_tokens": 1, "max_hit": 1, "budget": 0.25}}
    async with open_stage(rules, ids=("p1", "rld1", "md1")) as stage:
        learning, rules_now = stage.service.learning, rules_of(stage)
        for _ in range(4):
            decision = stage.service.decide(stage.request(), rules_now)
            learning.note_decision(decision, rules_now)
        assert learning.singular(MODEL).used == 0
        await read(stage.ask(max_tokens=None, sampling=Sampling(stop_token_ids=(unsplit()[5],))))
        transfer = stage.path.transfers[-1]
        if not is_enabled:
            transfer.complete()
        await stage.quiet()
        assert transfer.state == ("aborted" if is_enabled else "complete")
        assert learning.singular(MODEL).used == pytest.approx(1 if is_enabled else 0, abs=0.01)


@pytest.mark.parametrize(("name", "told"), [("p1", 64), ("rld1", 0), ("md1", 0)])
async def test_cached_tokens_are_what_the_prefill_took(name: str, told: int) -> None:
    """The client learns what P found in its cache; what RLD and MD found is the relay's own KV."""

    async with open_stage(ids=("p1", "rld1", "md1"), path=LinkedPath(is_instant=True)) as stage:
        stage.engines["p1"].script = Script(cached_tokens=0)
        stage.engines[name].script = replace(stage.engines[name].script, cached_tokens=64)
        events = await read(stage.ask())
        await stage.quiet()
    assert finish_of(events).cached_tokens == told


@pytest.mark.parametrize("pipelines", [["direct"], ["direct", "relay"]])
async def test_rld_steps_in_only_where_relays_are_allowed(pipelines: list[str]) -> None:
    """An answer whose MDs are lost goes on at RLD, but never for a tenant whose rules know direct alone."""
    async with open_stage({"pipelines": pipelines}, path=LinkedPath(is_instant=True)) as stage:
        for id_ in ("md1", "md2"):
            stage.engines[id_].script = Script(fault=Cut(0))
        if pipelines == ["direct"]:
            with pytest.raises(GatewayError):
                await read(stage.ask())
        else:
            assert len(ids_of(await read(stage.ask()))) == 40
        calls = sum(len(stage.engines[id_].calls) for id_ in ("rld1", "rld2"))
    assert (calls > 0) == ("relay" in pipelines)
