"""A small fleet whose times are easy to reckon."""

from typing import Any

from policies.rules import Rules, parse_rules
from policies.simulator.engine_model import EngineModel
from policies.simulator.fleet import Fleet, Member, WanLine
from policies.simulator.replay import Replay
from policies.simulator.report import Report
from policies.simulator.trace import Row
from policies.types import Role
from tests.policies.build import FixedRng

ENGINE = EngineModel(
    token_s=0.0001, step_s=0.001, weights_s=0.009, max_running=16, budget_tokens=10_000, load_bytes_per_s=1e12
)
"""0.1 ms a token of prefill and 1 ms a step, 10 ms a token of decode; an extend takes a step, so 10 ms."""

TRIO = (Member("p", Role.P, "a", ENGINE), Member("r", Role.RLD, "a", ENGINE), Member("m", Role.MD, "b", ENGINE))
SLOW = WanLine("a", "b", rate_bytes_per_s=1e6, rtt_s=0.02)
"""1,000 tokens of 1,000 bytes a second."""


def fleet(*members: Member, lines: tuple[WanLine, ...] = (SLOW,), **fields: Any) -> Fleet:
    """A fleet of P and RLD in region a and MD in region b, unless members are given."""
    return Fleet(members or TRIO, lines, **{"kv_bytes_per_token": 1000, "block_tokens": 100, **fields})


def row(prompt_tokens: int, output_tokens: int, at_s: float = 0.0, first_block: int = 0) -> Row:
    """A request whose prompt has blocks of its own number range."""
    blocks = range(first_block, first_block + -(-prompt_tokens // 100))
    return Row(at_s, prompt_tokens, output_tokens, tuple(blocks))


def replay(rows: list[Row], seen: Fleet | None = None, **sections: Any) -> tuple[Replay, Report]:
    """Replay rows under rules given as plain sections."""
    rules: Rules = parse_rules(sections)
    simulation = Replay(seen or fleet(), rules, FixedRng())
    return simulation, simulation.run(rows)
