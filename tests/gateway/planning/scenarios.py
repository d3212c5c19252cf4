"""The reported scenario, small enough for a test."""

from typing import Any

from gateway.planning.scenario import Scenario, load_scenario

SMALL: dict[str, Any] = {
    "baseline_chips": 14,
    "pdd": {"p": 2, "rld": 1, "md": 4},
    "prompt_tokens": 16_000,
    "output_tokens": 200,
    "total_s": 12,
    "ttft_s": 4,
    "requests": 120,
    "search_s": 5,
    "turn_s": 5,
    "line_loads": [0.9],
    "repeats": 1,
}


def small_scenario(**changes: Any) -> Scenario:
    """The paper's scenario with short requests and few of them."""
    return load_scenario("paper", **{**SMALL, **changes})
