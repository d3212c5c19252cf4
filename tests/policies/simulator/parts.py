"""What fleets of a made-up pair of chips are made of: A computes well, B reads its memory three times as fast."""

from policies.rules import Rules, parse_rules
from policies.simulator.engine_model import EngineModel, as_decoder
from policies.simulator.fleet import WanLine
from policies.simulator.topologies import FleetParts

NEAR = EngineModel(token_s=0.00002, weights_s=0.02, kv_read_s=3e-8, kv_tokens=2_000_000, budget_tokens=8192)
FAR = as_decoder(
    EngineModel(token_s=0.00004, weights_s=0.007, kv_read_s=1e-8, kv_tokens=3_000_000, budget_tokens=8192, cost=1.25)
)
LINE = WanLine("a", "b", rate_bytes_per_s=2e9, cost=0.3)
PARTS = FleetParts(NEAR, as_decoder(NEAR), FAR, LINE, 30_000)
RULES: Rules = parse_rules({"slo": {"ttft_s": 10, "total_s": 30}})
