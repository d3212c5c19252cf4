"""A gateway's own configuration as a fleet to simulate: its engines name their chips."""

from dataclasses import replace
from pathlib import Path

from gateway.config.fleet_settings import BadSettings, EngineSettings
from gateway.config.settings import load_settings
from gateway.fleet.curves import BadCurve, read_curve
from gateway.planning.compare import Contender
from gateway.planning.scenario import Scenario
from policies.rules import Rules
from policies.simulator.cases import Agents, Recorded
from policies.simulator.chips import CHIPS
from policies.simulator.closed_form import fleet_rate, needs
from policies.simulator.engine_model import EngineModel, as_decoder, build_engine, measured_engine
from policies.simulator.fleet import Fleet, Member, WanLine
from policies.types import Role

MBIT = 125_000
"""Bytes a second."""


def read_fleet(path: Path, scenario: Scenario, traffic: Agents | Recorded, rules: Rules | None) -> Contender:
    """Model the engines and links of a configuration. ``rules`` None: those of the file. Raises BadSettings."""
    settings = load_settings(path)
    members = tuple(
        Member(one.id, Role(one.role), one.region, _engine(number, one, scenario, path.parent))
        for number, one in enumerate(settings.engines)
    )
    counts = {role.value: sum(one.role is role for one in members) for role in Role}
    if not counts["MD"]:
        raise BadSettings(f"{path}: engines: no MD")
    stores: dict[str, int] = {}
    for member in members:
        stores[member.region] = stores.get(member.region, 0) + member.engine.store_tokens
    lines = tuple(
        WanLine(one.source, one.dest, one.rate_mbit * MBIT, scenario.rtt_ms / 1000, scenario.line_cost)
        for one in settings.links
    )
    fleet = Fleet(members, lines, scenario.llm.kv_bytes, stores=stores)
    prefill = next((one.engine for one in members if one.role is Role.P), None)
    main = next(one.engine for one in members if one.role is Role.MD)
    need = needs(prefill or main, main, scenario.workload(traffic))
    estimate = fleet_rate(counts["P"] or counts["MD"], counts["MD"], need)
    return Contender(path.name, fleet, settings.rules if rules is None else rules, counts, estimate)


def _engine(number: int, settings: EngineSettings, scenario: Scenario, folder: Path) -> EngineModel:
    place = f"engines[{number}].chip"
    if settings.chip is None:
        raise BadSettings(f"{place}: say what it runs on, like 8xH200")
    count, _, rest = settings.chip.partition("x")
    chips, name = (int(count), rest) if count.isdigit() and rest else (1, settings.chip)
    if name not in CHIPS:
        raise BadSettings(f"{place}: {name} is not known; there are {', '.join(CHIPS)}")
    try:
        engine = build_engine(
            CHIPS[name], scenario.llm, chips, max(chips, _group(scenario)), scenario.mfu, scenario.mbu
        )
    except ValueError as error:
        raise BadSettings(f"{place}: {error}") from None
    if settings.prefill_curve is not None:
        engine = _profiled(engine, folder / settings.prefill_curve)
    price = settings.price_per_hour or chips * CHIPS[name].price_per_hour
    engine = replace(engine, cost=price, max_running=settings.max_running)
    return engine if settings.role == "P" else as_decoder(engine)


def _group(scenario: Scenario) -> int:
    return 1 if scenario.llm.experts == 1 else scenario.expert_group


def _profiled(engine: EngineModel, path: Path) -> EngineModel:
    """The same engine with the times that it was measured to take for prompts."""
    try:
        measured = measured_engine(read_curve(path), engine.decode_step_s(1, 0))
    except BadCurve as error:
        raise BadSettings(str(error)) from None
    return replace(engine, token_s=measured.token_s, step_s=measured.step_s, pair_s=0.0, padding_tokens=0.0)
