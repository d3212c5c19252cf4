"""Whether an external provider answers in place of the model's own engines."""

from collections.abc import Sequence

from policies.rules import Rules
from policies.types import InstanceView, Role
from policies.where import Where


def choose_overflow(views: Sequence[InstanceView], rules: Rules, *, refused: bool) -> str | None:
    """Return the reason to ask the provider that the rules name; None: the own engines answer.

    ``refused``: no engine could take the request. A tenant that is pinned to regions never leaves them.
    """
    overflow = rules.overflow
    if overflow.model is None or Where.of(rules).is_bound:
        return None
    if overflow.when == "always":
        return "always"
    if refused:
        return "no_instance"
    mains = [view for view in views if view.role is Role.MD and view.healthy and not view.draining]
    if overflow.when == "overloaded" and mains and all(view.load >= overflow.load_max for view in mains):
        return "overloaded"
    return None
