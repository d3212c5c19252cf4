"""A scenario: the constants of a study as a file, and the fleets and the traffic that follow from them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.config.fleet_settings import BadSettings, Count, Positive
from gateway.config.settings import read_yaml
from policies.rules import Rules, SloRules
from policies.section import Section
from policies.simulator.agents import HitBucket
from policies.simulator.cases import Agents, Recorded
from policies.simulator.chips import CHIPS, MBU, MFU, Chip
from policies.simulator.closed_form import Workload
from policies.simulator.engine_model import EngineModel, as_decoder, build_engine
from policies.simulator.fleet import WanLine
from policies.simulator.llms import LLMS, Llm
from policies.simulator.topologies import FleetCounts, FleetParts

PAPER = Path(__file__).with_name("paper.yaml")
GBIT = 125e6
"""Bytes a second."""

LEAST_KV_TOKENS = 300_000
"""Memory for a handful of long prompts; an instance with less is given more chips."""


class RoleCounts(Section, frozen=True):
    """Instances by role."""

    p: Count
    rld: Annotated[int, Meta(ge=0)]
    md: Count


class Scenario(Section, frozen=True):
    """All constants of a study; ``paper.yaml`` tells what each is and where it is from."""

    model: str
    chip_a: str
    chip_b: str
    price_a: Positive
    price_b: Positive
    line_cost: Annotated[float, Meta(ge=0)]
    expert_group: Count
    prefill_chips: Count
    line_gbit: Positive
    rtt_ms: Positive
    baseline_chips: Positive
    pdd: RoleCounts
    prompt_tokens: Count
    output_tokens: Count
    hits: Annotated[tuple[tuple[float, float, float], ...], Meta(min_length=1)]
    output_spread: Annotated[float, Meta(ge=0, le=1)]
    turn_s: Positive
    requests: Count
    ttft_s: Positive
    total_s: Positive
    good_share: Annotated[float, Meta(gt=0, le=1)]
    utilisation: Annotated[float, Meta(gt=0, lt=1)]
    line_loads: tuple[float, ...]
    line_load: Positive
    search_s: Positive
    seed: int = 1
    repeats: Count = 1
    """Seeds from ``seed`` on of the runs that the reported figures are compared with."""
    mfu: Positive = MFU
    mbu: Positive = MBU
    tokens_per_step: Positive | None = None
    """None: the model's own."""
    decode_chips: Count = 1
    itl_s: Positive | None = None
    """Longest mean time between an answer's tokens that is promised. None: the whole answer's time is all."""
    cold_output_tokens: Count | None = None
    """Mean length of answers to prompts of which next to nothing is cached. None: that of all answers."""
    direct_wan_bound_s: Annotated[float, Meta(ge=0)] = Rules().direct_wan_bound_s

    @property
    def llm(self) -> Llm:
        """The model. Raises BadSettings."""
        llm: Llm = _find(LLMS, self.model, "model")
        return llm if self.tokens_per_step is None else replace(llm, tokens_per_step=self.tokens_per_step)

    @property
    def traffic(self) -> Agents:
        """The requests."""
        return Agents(
            self.requests,
            self.prompt_tokens,
            self.output_tokens,
            output_spread=self.output_spread,
            hits=tuple(HitBucket(*bucket) for bucket in self.hits),
            turn_s=self.turn_s,
            cold_output_tokens=self.cold_output_tokens,
        )

    @property
    def longer_traffic(self) -> Agents:
        """Twice as much of it, for a fleet at its limit."""
        return replace(self.traffic, requests=2 * self.requests)

    @property
    def rules(self) -> Rules:
        """The gateway's defaults with the scenario's promises."""
        slo = SloRules(ttft_s=self.ttft_s, total_s=self.total_s)
        return Rules(slo=slo, direct_wan_bound_s=self.direct_wan_bound_s)

    def workload(self, traffic: Agents | Recorded) -> Workload:
        """A request on average, and the pace that is promised."""
        load = traffic.workload(self.rules)
        return load if self.itl_s is None else replace(load, itl_s=min(self.itl_s, load.itl_s))

    @property
    def counts(self) -> FleetCounts:
        """PDD's fleet."""
        return FleetCounts(self.pdd.p, self.pdd.rld, self.pdd.md)

    @property
    def budget(self) -> float:
        """What the baseline costs."""
        return self.baseline_chips * self.price_a

    def parts(self) -> FleetParts:
        """Model the instances and the line. Raises BadSettings."""
        llm = self.llm
        near, far = (_find(CHIPS, name, "chip") for name in (self.chip_a, self.chip_b))
        return FleetParts(
            self._instance(near, llm, self.prefill_chips, self.price_a),
            as_decoder(self._instance(near, llm, self.decode_chips, self.price_a)),
            as_decoder(self._instance(far, llm, self.decode_chips, self.price_b)),
            WanLine("a", "b", self.line_gbit * GBIT, self.rtt_ms / 1000, self.line_cost),
            llm.kv_bytes,
        )

    def _instance(self, chip: Chip, llm: Llm, chips: int, price: float) -> EngineModel:
        """An instance of so many chips, or, where the experts cannot be spread, of as many as hold the weights."""
        if llm.experts == 1:
            return _whole_instance(chip, llm, price, self.mfu, self.mbu)
        try:
            engine = build_engine(chip, llm, chips, max(self.expert_group, chips), self.mfu, self.mbu)
        except ValueError as error:
            raise BadSettings(f"{error}: use more chips (expert_group, prefill_chips)") from None
        return replace(engine, cost=chips * price)


def _whole_instance(chip: Chip, llm: Llm, price: float, mfu: float, mbu: float) -> EngineModel:
    for chips in (1, 2, 4, 8, 16):
        try:
            engine = build_engine(chip, llm, chips, chips, mfu, mbu)
        except ValueError:
            continue
        if engine.kv_tokens >= LEAST_KV_TOKENS:
            return replace(engine, cost=chips * price)
    raise BadSettings(f"{llm.name} does not fit into 16 x {chip.name}")


def _find(known: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in known:
        raise BadSettings(f"{what} {name} is not known; there are {', '.join(known)}")
    return known[name]


def load_scenario(name: str, **changes: object) -> Scenario:
    """Read a scenario file, or ``paper``, with some of its values changed. Raises BadSettings."""
    path = PAPER if name == "paper" else Path(name)
    value = read_yaml(path)
    if not isinstance(value, dict):
        raise BadSettings(f"{path}: not a scenario")
    try:
        return msgspec.convert({**value, **changes}, Scenario)
    except msgspec.ValidationError as error:
        raise BadSettings(f"{path}: {error}") from None
