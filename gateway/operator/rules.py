"""What an operator does with the rule documents: check them together, write one, and try new ones on past requests."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.config.document_store import Document
from gateway.config.live import DocumentsRefused
from gateway.config.rulebook import RULES, RuleBook
from gateway.errors import GatewayError
from gateway.relay.router import Router
from gateway.telemetry.timeline import Timeline
from policies.plans import Decision, Plan
from policies.route import choose_plan
from policies.rules import Rules
from policies.types import NoInstance


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A past request under new rules. ``before`` and ``after``: the plan now, with the present rules and the new."""

    request_id: str
    tenant: str
    prompt_tokens: int
    before: str
    after: str


def build_book(base: Rules, documents: Sequence[Document]) -> RuleBook:
    """Return the rules that documents come to, over those of the configuration. Raises DocumentsRefused."""
    book = RuleBook(base)
    book.apply(documents)
    return book


def with_change(documents: Sequence[Document], name: str, value: Any) -> list[Document]:
    """Return the documents as they would be with another body of one; None: without it."""
    others = [one for one in documents if one.name != name]
    return others if value is None else [*others, unsaved(name, value)]


def unsaved(name: str, value: Any) -> Document:
    """Return a rule document that is stored nowhere."""
    return Document(RULES, name, 0, 0, 0, "", msgspec.json.encode(value).decode())


def check_change(base: Rules, documents: Sequence[Document], name: str, value: Any) -> RuleBook:
    """Return the rules with a change. Raises GatewayError that says what is wrong with it."""
    try:
        return build_book(base, with_change(documents, name, value))
    except DocumentsRefused as error:
        raise GatewayError(400, str(error), code="rules_refused") from None


def rehearse(router: Router, timelines: Iterable[Timeline], new: RuleBook) -> Iterator[Rehearsal]:
    """Decide past requests on the present fleet, and yield those whose plan would be another one."""
    for timeline in timelines:
        decision = timeline.decision
        if decision is None:
            continue
        facts = decision.facts
        before, after = (
            _decide(router, decision, book.of(facts.tenant, facts.session or timeline.request_id))
            for book in (router.rulebook, new)
        )
        if before != after:
            yield Rehearsal(timeline.request_id, facts.tenant, facts.prompt_tokens, before, after)


def _decide(router: Router, decision: Decision, rules: Rules) -> str:
    snapshot = router.snapshot(decision.facts.model, decision.facts.session, decision.facts.salted)
    try:
        return spell_plan(choose_plan(decision.facts, snapshot, rules, random.Random(0)).plan)
    except NoInstance as error:
        return str(error)


def spell_plan(plan: Plan) -> str:
    """Write a plan on one line: its kind, its instances, and why."""
    path = " -> ".join(name for name in (plan.prefill, plan.relay, plan.main) if name)
    return f"{plan.kind} {path} ({plan.reason})"
