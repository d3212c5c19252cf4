"""Where a tenant's prompts, tokens and KV may be.

Choosing, replacing an instance that was lost, passing on and leaving for a provider all ask here, and nobody else reads
the rules that say where. So another such rule is a field of the rules and its meaning in ``Where.of``.
"""

from dataclasses import dataclass
from typing import Self

from policies.rules import Rules


@dataclass(frozen=True, slots=True)
class Where:
    """The regions that are allowed; None: all are, and so are places outside of any region."""

    regions: frozenset[str] | None = None

    @classmethod
    def of(cls, rules: Rules) -> Self:
        """Read the rules."""
        return cls(None if rules.regions is None else frozenset(rules.regions))

    @property
    def is_bound(self) -> bool:
        """Some places are forbidden, and all those whose region is not known: external providers above all."""
        return self.regions is not None

    def allows(self, region: str | None) -> bool:
        """Say whether something that stands in a region may be asked; None: nobody knows where it stands."""
        return self.regions is None or region in self.regions


ANYWHERE = Where()
