"""Decides the requests of a trace under two sets of rules, on an idle fleet, and tells which plans differ."""

import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from gateway.config.fleet_settings import BadSettings
from gateway.config.rulebook import RuleBook
from gateway.config.settings import Settings
from gateway.fleet.build import find_carriers, find_kv_bytes, links_of, read_terms
from policies.eligibility import RequestFeatures, unsplittable_reason
from policies.route import choose_plan
from policies.rule_documents import DEFAULT
from policies.rules import Rules
from policies.singular import UNUSED_BUDGET
from policies.types import Facts, Hit, InstanceView, LinkView, NoInstance, Role, Snapshot


class TraceRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One line of a trace. What an instance has cached is unknown where ``hits`` does not name it."""

    prompt_tokens: int
    model: str | None = None
    """None: the first of the configuration's."""
    tenant: str = DEFAULT
    session: str | None = None
    id: str = ""
    hits: Mapping[str, int] = {}
    """Cached tokens by instance."""
    output_tokens: int | None = None
    """Length of the answer."""
    max_output_tokens: int | None = None
    running: Mapping[str, int] = {}
    """Requests that run on an instance; 0 where nothing is said."""
    features: RequestFeatures = RequestFeatures()


def rehearse(settings: Settings, trace: Path, old: RuleBook, new: RuleBook) -> Iterator[str]:
    """Yield a line for each request whose plan would change, and a sum. Raises BadSettings."""
    kv_bytes = {
        model.name: find_kv_bytes(number, model, links_of(model, settings))
        for number, model in enumerate(settings.models)
    }
    count = changed = 0
    for number, row in read_trace(trace):
        count += 1
        key = row.session or row.id or str(number)
        plans = [_decide(settings, kv_bytes, row, book.of(row.tenant, key), number) for book in (old, new)]
        if plans[0] != plans[1]:
            changed += 1
            yield f"{trace.name}:{number}  {row.tenant}, {row.prompt_tokens} tokens: {plans[0]}  =>  {plans[1]}"
    yield f"{changed} of {count} requests would get another plan"


def read_trace(path: Path) -> Iterator[tuple[int, TraceRow]]:
    """Yield the lines of a trace and their numbers. Raises BadSettings."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise BadSettings(f"cannot read {path}: {error.strerror}") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield number, msgspec.json.decode(line, type=TraceRow)
            except msgspec.DecodeError as error:
                raise BadSettings(f"{path}:{number}: {error}") from None


def _decide(settings: Settings, kv_bytes: Mapping[str, int], row: TraceRow, rules: Rules, seed: int) -> str:
    model = row.model or settings.models[0].name
    facts = Facts(
        model=model,
        prompt_tokens=row.prompt_tokens,
        hits={name: Hit(tokens) for name, tokens in row.hits.items()},
        max_output_tokens=row.max_output_tokens,
        predicted_output_tokens=row.output_tokens,
        unsplittable=unsplittable_reason(row.features, rules.splitting),
        tenant=row.tenant,
    )
    try:
        plan = choose_plan(facts, _idle(settings, kv_bytes, model, row.running), rules, random.Random(seed)).plan
    except NoInstance as error:
        return str(error)
    path = " -> ".join(name for name in (plan.prefill, plan.relay, plan.main) if name)
    return f"{plan.kind} {path} ({plan.reason})"


def _idle(settings: Settings, kv_bytes: Mapping[str, int], model: str, running: Mapping[str, int]) -> Snapshot:
    """The fleet of the settings, all well, with the links at their assumed rates."""
    found = next((one for one in settings.models if one.name == model), None)
    if found is None:
        raise BadSettings(f"the trace asks for {model}, which is not in models")
    views = tuple(
        InstanceView(
            one.id,
            Role(one.role),
            one.model,
            one.region,
            running=running.get(one.id, 0),
            max_running=one.max_running,
        )
        for one in settings.engines
    )
    carriers = find_carriers(model, settings.links)
    links = {(one.source, one.dest): LinkView(one.source, one.dest, one.rate_mbit * 125_000) for one in carriers}
    return Snapshot(
        instances=views,
        links=links,
        kv_bytes_per_token=kv_bytes[model],
        kv_chunk_tokens=max((read_terms(one).chunk_tokens for one in carriers), default=1),
        prefix_cache_effective=found.cache_effective,
        singular=UNUSED_BUDGET,
    )
