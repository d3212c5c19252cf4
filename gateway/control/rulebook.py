"""The rules in force. A request keeps the ones it started with."""

from policies.rules import Rules


class RuleBook:
    """Rules for each tenant; a swap is one assignment, so a reader sees the old ones or the new ones, never a mix."""

    def __init__(self, default: Rules) -> None:
        self._default = default

    def of(self, tenant: str) -> Rules:
        """The rules that apply to a tenant now."""
        return self._default

    def replace(self, default: Rules) -> None:
        """Put new rules in force for requests that start from now on."""
        self._default = default
