"""Whether P itself writes on in RLD's place while the KV crosses.

So the second token is one decode step away, and no KV moves to an RLD. But P decodes between the prompts that it
computes: its tokens stutter while others' prefill runs, and each takes a little of the time that prefill has. That is
good where P has room, and RLDs are there for when it has not.
"""

from policies.rules import RelayRules, Rules
from policies.types import InstanceView, LinkView

LEAVE = 2
"""An answer leaves a P with so many times as many requests as one may have that takes such answers.

So a prompt that is computed beside it costs an answer some time, but not its place.
"""


def may_fuse(prefill: InstanceView, link: LinkView, rules: Rules) -> bool:
    """Say whether P may go on after its first token.

    Not where the KV that it lends, or what else moves it, is only to be had when P's leg has ended.
    """
    relay = rules.relay
    if relay.fused == "never" or not link.overlaps_prefill:
        return False
    return relay.fused == "always" or (
        _requests(prefill) < relay.fused_running_max and prefill.kv_usage <= rules.placement.kv_usage_max
    )


def must_leave(prefill: InstanceView, relay: InstanceView | None, rules: RelayRules) -> bool:
    """Say whether a P that writes has become so busy that RLD shall go on; ``relay`` None: there is none to go on."""
    if rules.fused == "always" or _requests(prefill) <= LEAVE * rules.fused_running_max:
        return False
    return relay is not None and relay.load < rules.load_max


def _requests(view: InstanceView) -> int:
    return view.running + view.waiting
