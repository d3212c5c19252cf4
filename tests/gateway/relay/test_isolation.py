"""Two tenants over the same engines: neither can tell what the other has asked."""

from dataclasses import replace

from gateway.auth.secrets import Salts
from gateway.fleet.pools import store_id
from gateway.index.types import CacheSpec
from gateway.relay.router import Router
from gateway.relay.types import GenerationRequest
from policies.plans import Decision
from tests.fakes.memory_index import MemoryIndex
from tests.gateway.relay.stage import MODEL, PROMPT, LinkedPath, Stage, open_stage, read, rules_of

SALTS = Salts(b"0123456789abcdef")


def with_index(stage: Stage) -> Router:
    """The stage's service over a real index that learns from what is routed."""
    index = MemoryIndex()
    for id_ in stage.engines:
        index.add_instance(CacheSpec(id_, MODEL, 16))
    index.add_instance(CacheSpec(store_id("b", MODEL), MODEL, 16))
    return replace(stage.service, index=index)


def ask(tenant: str, group: str | None = None) -> GenerationRequest:
    """The same question from any tenant."""
    salt = SALTS.of(tenant, group)
    return GenerationRequest(f"{tenant}-{group}", MODEL, PROMPT, 20, tenant=tenant, cache_salt=salt, session="chat-1")


def known_tokens(decision: Decision) -> int:
    """Prompt tokens that the decision takes to be in some cache."""
    return sum(hit.tokens + hit.store_tokens for hit in decision.facts.hits.values() if hit is not None)


async def test_a_tenants_prompt_is_no_hit_for_another() -> None:
    """TEN-01, TEN-04: after one tenant's answer, routing sees hits for it and none for another tenant's same prompt."""
    async with open_stage(path=LinkedPath(is_instant=True)) as stage:
        service, rules = with_index(stage), rules_of(stage)
        fresh = service.decide(ask("b"), rules)
        await read(service.generate(ask("a")))
        await stage.quiet()
        own, other = service.decide(ask("a"), rules), service.decide(ask("b"), rules)
        assert known_tokens(own) > 0
        assert known_tokens(other) == known_tokens(fresh) == 0
        assert (other.plan.kind, other.plan.reason) == (fresh.plan.kind, fresh.plan.reason)
        assert other.estimate == fresh.estimate


async def test_a_group_shares_its_cache() -> None:
    """Tenants of one group find each other's prefixes, and nobody else does."""
    async with open_stage(path=LinkedPath(is_instant=True)) as stage:
        service, rules = with_index(stage), rules_of(stage)
        await read(service.generate(ask("a", "g")))
        await stage.quiet()
        assert known_tokens(service.decide(ask("b", "g"), rules)) > 0
        assert known_tokens(service.decide(ask("b"), rules)) == 0
        assert known_tokens(service.decide(ask("a"), rules)) == 0


async def test_every_leg_and_transfer_carries_the_salt() -> None:
    """TEN-06: what is looked up, computed and moved for a tenant is under one salt."""
    async with open_stage(path=LinkedPath(is_instant=True)) as stage:
        await read(stage.ask(tenant="a", cache_salt=SALTS.of("a")))
        await stage.quiet()
        calls = [call for engine in stage.engines.values() for call in engine.calls]
        assert len(calls) >= 2 and stage.path.transfers
        assert {call.body.get("cache_salt") for call in calls} == {SALTS.of("a")}
        assert {transfer.request.salt for transfer in stage.path.transfers} == {SALTS.of("a")}


async def test_sessions_are_a_tenants_own() -> None:
    """TEN-04: a conversation's name that another tenant uses leads nowhere."""
    async with open_stage(path=LinkedPath(is_instant=True)) as stage:
        service, rules = with_index(stage), rules_of(stage)
        service.generate(ask("a"))
        sessions = {tenant: service.decide(ask(tenant), rules).facts.session for tenant in ("a", "b")}
        served = {tenant: service.sessions.served(session or "") for tenant, session in sessions.items()}
        assert served["a"] and not served["b"]


async def test_a_tenants_transfers_take_its_share_of_the_line_and_do_not_name_it() -> None:
    """What moves KV is told whose it is by a name that is always the same and tells nothing, and the rule's weight."""
    async with open_stage({"limits": {"wan_weight": 3}}, path=LinkedPath(is_instant=True)) as stage:
        service = replace(stage.service, name_tenant=SALTS.name_tenant)
        for request in (ask("acme"), ask("acme", "g"), ask("other")):
            await read(service.generate(request))
        await stage.quiet()
    acme, again, other = [transfer.request for transfer in stage.path.transfers]
    assert acme.tenant == again.tenant != other.tenant
    assert "acme" not in acme.tenant and len(acme.tenant) == 16
    assert acme.weight == 3.0
