"""Rules as they are written: a default document, one a tenant, merged, and perhaps other rules for a few requests."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from policies.rules import BadRules, Rules, convert_rules, parse_rules
from policies.section import Section, Share

Layer = Mapping[str, Any]
"""A rule document as JSON values."""

DEFAULT = "default"
"""Name of the document that holds for all tenants, and of the tenant of requests that name none."""


class CanaryRules(Section, frozen=True):
    """Other rules for some requests."""

    share: Annotated[
        Share,
        Meta(
            description="Share of the requests that get the canary's rules: the same sessions always, and with a "
            "greater share those of the smaller one too."
        ),
    ]
    rules: Annotated[
        dict[str, Any], Meta(description="Fields of this table that differ for them; merged over the others.")
    ]


class RuleDocument(Rules, frozen=True):
    """One rule document: every field may be left out."""

    canary: Annotated[CanaryRules | None, Meta(description="Other rules for some requests. null: none.")] = None


@dataclass(frozen=True, slots=True)
class TenantRules:
    """Rules as one document and those under it make them. ``canary`` None: all requests have the same."""

    stable: Rules
    canary: Rules | None = None
    share: float = 0.0

    def of(self, tenant: str, key: str) -> Rules:
        """The rules of a tenant's request or session that ``key`` names."""
        if self.canary is None or _position(tenant, key) >= self.share:
            return self.stable
        return self.canary


def build_rules(*layers: object) -> TenantRules:
    """Merge documents, later ones over earlier ones, and check what comes out. Raises BadRules.

    Objects are merged field by field; anything else, lists and null too, replaces what was there.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        if not isinstance(layer, Mapping):
            raise BadRules("", "Expected `object`")
        merged = merge(merged, layer)
    canary = merged.pop("canary", None)
    stable = parse_rules(merged)
    if canary is None:
        return TenantRules(stable)
    checked = convert_rules(canary, CanaryRules, "canary")
    try:
        return TenantRules(stable, parse_rules(merge(merged, checked.rules)), checked.share)
    except BadRules as error:
        path = f"canary.rules.{error.path}" if error.path else "canary.rules"
        raise BadRules(path, error.message) from None


def merge(under: Layer, over: Layer) -> dict[str, Any]:
    """Lay one object over another."""
    merged = dict(under)
    for name, value in over.items():
        below = merged.get(name)
        merged[name] = merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def document_schema() -> dict[str, Any]:
    """JSON Schema of a rule document, with every field's meaning, limits and default."""
    return msgspec.json.schema(RuleDocument)


def _position(tenant: str, key: str) -> float:
    """Where a request stands between 0 and 1, the same in every process."""
    digest = blake2b(f"{len(tenant)}:{tenant}{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64
