"""The rules in force. A request keeps the ones it started with."""

import asyncio
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
BUILT_A_TURN, KEPT_A_TURN = 100, 2000
"""Documents that are built, or found built, before the event loop may do something else: about a millisecond's work."""


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
        self._draft: tuple[Sequence[Document], _Book] = ((), self._book)
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

    async def prepare(self, documents: Sequence[Document]) -> None:
        """Build what ``apply`` needs of documents, some in each turn of the event loop. Raises DocumentsRefused."""
        sources, under, layer = self._read(documents)
        tenants: dict[str, TenantRules] = {}
        draft = _Book(_build(DEFAULT, layer), tenants, sources, under)
        done = 0.0
        for name, document in sources.items():
            found = self._find(name, document, under)
            done += 1 / (KEPT_A_TURN if found else BUILT_A_TURN)
            tenants[name] = found or _build(name, layer, document.value)
            if done >= 1:
                done = 0.0
                await asyncio.sleep(0)
        self._draft = documents, draft

    def apply(self, documents: Sequence[Document]) -> None:
        """Put rule documents in force, all or none. Raises DocumentsRefused."""
        prepared, draft = self._draft
        if prepared is not documents:
            sources, under, layer = self._read(documents)
            default = _build(DEFAULT, layer)
            tenants = {
                name: self._find(name, document, under) or _build(name, layer, document.value)
                for name, document in sources.items()
            }
            draft = _Book(default, tenants, sources, under)
        self._book, self.known = draft, True

    def _read(self, documents: Sequence[Document]) -> tuple[dict[str, Document], Document | None, Any]:
        """Return the tenants' documents, the default one, and what is under those of tenants."""
        sources = {document.name: document for document in documents}
        under = sources.pop(DEFAULT, None)
        return sources, under, self._base if under is None else under.value

    def _find(self, name: str, document: Document, under: Document | None) -> TenantRules | None:
        """Return what was built of a document over the same default."""
        book = self._book
        made_of = book.sources.get(name) if book.under is under or book.under == under else None
        return book.tenants[name] if made_of is document or made_of == document else None


def _build(name: str, *layers: Any) -> TenantRules:
    try:
        return build_rules(*layers)
    except BadRules as error:
        raise DocumentsRefused(name, str(error)) from None
