"""The rules in force. A request keeps the ones it started with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gateway.config.document_store import Document
from gateway.config.live import DocumentsRefused
from gateway.errors import GatewayError
from policies.rule_documents import DEFAULT, TenantRules, build_rules
from policies.rules import BadRules, Rules

RULES = "rules"
"""Kind of the rule documents; their names are ``default`` and those of tenants."""


@dataclass(frozen=True, slots=True)
class _Book:
    """``sources``: the documents that ``tenants`` were built from, over that of ``under``."""

    default: TenantRules
    tenants: Mapping[str, TenantRules] = field(default_factory=dict)
    sources: Mapping[str, Document] = field(default_factory=dict)
    under: Document | None = None


class RuleBook:
    """Rules for each tenant; a swap is one assignment, so a reader sees the old ones or the new ones, never a mix.

    ``base`` holds under all documents, and alone while Redis has no ``default``. ``known`` False: not even that may be
    used before the documents were read once, as a tenant's may forbid what the base allows.
    """

    def __init__(self, base: Rules, known: bool = True) -> None:
        self._base = msgspec.to_builtins(base)
        self._book = _Book(TenantRules(base))
        self.known = known

    def of(self, tenant: str, key: str = "") -> Rules:
        """The rules that apply now to a tenant's request (or session) that ``key`` names. Raises GatewayError."""
        if not self.known:
            raise GatewayError(503, "the rules cannot be read yet", code="rules_unknown", retry_after_s=1.0)
        book = self._book
        return book.tenants.get(tenant, book.default).of(tenant, key)

    def replace(self, default: Rules) -> None:
        """Put new rules in force for all requests that start from now on, whatever the documents say."""
        self._book = _Book(TenantRules(default))

    def apply(self, documents: Sequence[Document]) -> None:
        """Put rule documents in force, all or none. Raises Refused."""
        sources = {document.name: document for document in documents}
        under, old = sources.pop(DEFAULT, None), self._book
        layer = self._base if under is None else under.value
        default = _build(DEFAULT, layer)
        kept = old.sources if under == old.under else {}
        tenants = {
            name: old.tenants[name] if kept.get(name) == document else _build(name, layer, document.value)
            for name, document in sources.items()
        }
        self._book = _Book(default, tenants, sources, under)
        self.known = True


def _build(name: str, *layers: Any) -> TenantRules:
    try:
        return build_rules(*layers)
    except BadRules as error:
        raise DocumentsRefused(name, str(error)) from None
