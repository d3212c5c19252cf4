"""Plans: which pipeline, which instances, and the reason."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from policies.plans import Direct, PassThrough, Relay, Singular
from policies.route import choose_plan
from policies.rules import Rules
from policies.types import Alignment, Facts, Hit, NoInstance, Role, SingularUse, Snapshot
from policies.valley import PrefillCurve
from tests.policies.build import M1, P1, R1, cases, decide, facts, instance, link, placed, rules, snapshot

ROUTE = ("a", "b")
ROOM = SingularUse(used=0.0, total=1000.0)
COLD_LONG = facts(100_000, max_output_tokens=64)


def test_a_long_cold_prompt_is_relayed() -> None:
    """KV that would come too late is hidden behind RLD."""
    decision = decide(facts(20_000))
    assert decision.plan == Relay("p1", "r1", "m1", "wan_slow", ROUTE)
    assert decision.estimate is not None
    assert decision.estimate.total_s == pytest.approx(10.014)
    assert [placement.role for placement in decision.scores] == [Role.MD, Role.P, Role.RLD]
    assert decision.facts.prompt_tokens == 20_000


def test_a_warm_prompt_is_direct_and_says_that_the_hit_did_it() -> None:
    """What is small only thanks to MD's hit goes direct for that reason."""
    hits = {"m1": Hit(19_500)}
    assert decide(facts(20_000, hits)).plan == Direct("p1", "m1", "hit_within_bound", ROUTE)
    assert decide(facts(20_000, {"m1": Hit(0, store_tokens=20_000)})).plan.reason == "nothing_to_move"


@pytest.mark.parametrize(
    ("prompt", "reason"), [(255, "under_one_chunk"), (256, "short_transfer"), (1000, "short_transfer")]
)
def test_short_prompts_are_direct(prompt: int, reason: str) -> None:
    """SPL-44: a prompt that fits the bound even without any hit goes direct, known hits or not."""
    assert decide(facts(prompt)).plan == Direct("p1", "m1", reason, ROUTE)
    assert decide(facts(prompt, {})).plan == Direct("p1", "m1", reason, ROUTE)


@pytest.mark.parametrize("hits", [{}, {"m1": None}, {"p1": Hit(0), "r1": Hit(0)}])
def test_an_unknown_hit_is_not_a_low_one(hits: dict[str, Hit | None]) -> None:
    """IDX-11: with MD's hit unknown a long prompt goes direct; it is neither relayed nor singular."""
    decision = decide(replace(COLD_LONG, hits=hits), snapshot(singular=ROOM))
    assert decision.plan == Direct("p1", "m1", "hit_unknown", ROUTE)
    assert decision.estimate is not None
    assert decision.estimate.total_s is None


def test_a_very_long_cold_prompt_with_a_short_answer_is_singular() -> None:
    """The singular pipeline has no MD and no transfer."""
    assert decide(COLD_LONG, snapshot(singular=ROOM)).plan == Singular("p1", "r1", "singular")


@pytest.mark.parametrize(
    ("request_fields", "seen_fields", "reason"),
    [
        ({"max_output_tokens": 500}, {}, "wan_slow"),
        ({"max_output_tokens": None}, {}, "wan_slow"),
        ({"max_output_tokens": 4000, "predicted_output_tokens": 499}, {}, None),
        ({"max_output_tokens": 100, "predicted_output_tokens": 800}, {}, None),
        ({}, {"singular": SingularUse()}, "singular_budget_spent"),
        ({}, {"alignment": Alignment(1000.0, 900.0, 100.0)}, "singular_misaligned"),
    ],
)
def test_what_may_not_be_singular_is_relayed(
    request_fields: dict[str, Any], seen_fields: dict[str, Any], reason: str | None
) -> None:
    """A refused singular request is relayed; a spent budget or a misaligned cache shows in the reason."""
    decision = decide(replace(COLD_LONG, **request_fields), snapshot(**{"singular": ROOM, **seen_fields}))
    expected = Singular("p1", "r1", "singular") if reason is None else Relay("p1", "r1", "m1", reason, ROUTE)
    assert decision.plan == expected


def test_kv_that_comes_sooner_than_the_answer_ends_is_not_singular() -> None:
    """When RLD, after P, would need longer than the transfer, the request is relayed."""
    slow_relay = instance("r1", Role.RLD, itl_s=1.0)
    assert decide(COLD_LONG, snapshot(P1, slow_relay, M1, singular=ROOM)).plan.reason == "wan_slow"
    slow_prefill = replace(P1, curve=PrefillCurve((0, 100_000), (0.1, 60.0)))
    assert decide(COLD_LONG, snapshot(slow_prefill, R1, M1, singular=ROOM)).plan.reason == "wan_slow"
    warm = replace(COLD_LONG, hits={"p1": Hit(99_000), "m1": Hit(0)})
    assert decide(warm, snapshot(slow_prefill, R1, M1, singular=ROOM)).plan.reason == "singular"
    unknown = replace(COLD_LONG, hits={"m1": Hit(0)})
    assert decide(unknown, snapshot(slow_prefill, R1, M1, singular=ROOM)).plan.reason == "wan_slow"


def test_kv_that_waits_for_prefill_gives_prefill_no_head_start() -> None:
    """On a link whose transfers begin when P has ended, P's time delays RLD and the KV alike."""
    slow_prefill = replace(P1, curve=PrefillCurve((0, 100_000), (0.1, 60.0)))
    seen = snapshot(slow_prefill, R1, M1, singular=ROOM, links=(link(overlaps_prefill=False),))
    assert decide(COLD_LONG, seen).plan.reason == "singular"


@pytest.mark.parametrize(
    ("relay", "reason"),
    [
        (replace(R1, running=256), "relay_overloaded"),
        (replace(R1, kv_usage=0.99), "relay_overloaded"),
        (replace(R1, region="c"), "no_relay"),
        (replace(R1, fingerprint="v2"), "no_relay"),
        (replace(R1, streams_ids=False), "no_relay"),
        (replace(R1, healthy=False), "no_relay"),
        (replace(R1, draining=True), "no_relay"),
        (replace(R1, model="other"), "no_relay"),
    ],
)
def test_without_a_free_relay_it_is_direct_never_singular(relay: Any, reason: str) -> None:
    """A missing or overloaded RLD sends even a singular request to MD."""
    assert decide(COLD_LONG, snapshot(P1, relay, M1, singular=ROOM)).plan == Direct("p1", "m1", reason, ROUTE)


def test_pipelines_restrict_the_choice() -> None:
    """[direct] never uses RLD; [relay] uses it wherever KV has to move."""
    assert decide(facts(20_000), given=rules(pipelines=["direct"])).plan.reason == "relay_not_allowed"
    only = rules(pipelines=["relay"])
    assert decide(facts(300), given=only).plan == Relay("p1", "r1", "m1", "relay_only", ROUTE)
    assert decide(facts(300, {}), given=only).plan == Relay("p1", "r1", "m1", "relay_only", ROUTE)
    assert decide(facts(100), given=only).plan.reason == "under_one_chunk"
    assert decide(facts(300, {"m1": Hit(300)}), given=only).plan.reason == "nothing_to_move"
    assert decide(facts(20_000), snapshot(P1, M1), only).plan.reason == "no_relay"


@pytest.mark.parametrize(
    ("bound", "prompt", "kind"),
    [(0.0, 256, "relay"), (0.0, 255, "direct"), (0.158, 256, "direct"), (0.1579, 256, "relay")],
)
def test_bound_edges(bound: float, prompt: int, kind: str) -> None:
    """POL-04: bound 0 is direct only when nothing crosses; the bound itself is included."""
    assert decide(facts(prompt), given=rules(direct_wan_bound_s=bound)).plan.kind == kind


@pytest.mark.parametrize(
    ("kv_bytes", "total_s", "kind"),
    [
        (1_748_992, 11.1, "relay"),  # 2 x 61 layers x 128 heads x 56 x 2: heads, as if each had KV of its own
        (70_272, 0.446, "direct"),  # 61 x (512 + 64) x 2: the latent that they share
    ],
)
def test_the_size_of_kv_decides(kv_bytes: int, total_s: float, kind: str) -> None:
    """A cold prompt for DeepSeek V3 over 10 Gbit/s: counted in heads it seems slow, though its KV is there at once."""
    line = link(rate_bytes_per_s=1.25e9, rtt_s=0.0)
    seen = snapshot(links=(line,), kv_bytes_per_token=kv_bytes)
    decision = decide(facts(31 * 256), seen)
    assert decision.plan.kind == kind
    assert decision.estimate is not None
    assert decision.estimate.total_s == pytest.approx(total_s, abs=0.01)


@pytest.mark.parametrize(
    ("gap_s", "kind"),
    [(None, "direct"), (0.1, "relay"), (9.0, "direct")],
)
def test_a_promise_tightens_the_bound(gap_s: float | None, kind: str) -> None:
    """The longest silence that is promised bounds Direct where it is tighter."""
    assert decide(facts(800), given=rules(slo={"gap_s": gap_s})).plan.kind == kind


@pytest.mark.parametrize("reason", ["structured_output", "penalty_state", "seeded_sampling", "bad_words"])
def test_unsplittable_requests_go_classic(reason: str) -> None:
    """A request that one engine must answer goes direct with P's token thrown away."""
    assert decide(facts(unsplittable=reason)).plan == Direct("p1", "m1", reason, ROUTE, classic=True)


def test_a_single_token_is_shown_at_once() -> None:
    """An answer of one token is P's own, so nothing is split and nothing is thrown away."""
    assert decide(facts(unsplittable="single_token")).plan == Direct("p1", "m1", "single_token", ROUTE)


def test_classic_can_be_forced() -> None:
    """The rule for comparisons makes every Direct classic."""
    naive = rules(pipelines=["direct"], direct_classic=True)
    assert decide(facts(20_000), given=naive).plan == Direct("p1", "m1", "relay_not_allowed", ROUTE, classic=True)


@pytest.mark.parametrize("silent", ["p1", "m1"])
def test_engines_without_ids_are_not_joined(silent: str) -> None:
    """SPL-50: where the only P or MD does not stream ids, the answer is MD's alone; a better instance is preferred."""
    trio = [replace(view, streams_ids=view.id != silent) for view in (P1, R1, M1)]
    assert decide(facts(), snapshot(*trio)).plan == Direct("p1", "m1", "ids_missing", ROUTE, classic=True)
    others = [replace(view, id=view.id + "x") for view in (P1, M1)]
    better = decide(facts(hits={"m1": Hit(0), "m1x": Hit(0)}), snapshot(*trio, *others))
    assert better.plan.kind == "relay"
    assert silent not in (better.plan.prefill, better.plan.main)


def test_models_without_prefix_reuse_pass_through() -> None:
    """IDX-15: where engines never reuse a prefix, hits say nothing and KV cannot be handed over: MD does all."""
    seen = snapshot(prefix_cache_effective=False)
    decision = decide(COLD_LONG, seen)
    assert decision.plan == PassThrough("m1", "prefix_cache_ineffective")
    assert (decision.plan.prefill, decision.plan.relay, decision.estimate) == (None, None, None)


def test_one_region_needs_no_relay() -> None:
    """P and MD in one region share a store: nothing crosses."""
    near = replace(M1, region="a")
    decision = decide(facts(), snapshot(P1, R1, near, links=()))
    assert decision.plan == Direct("p1", "m1", "same_region")
    assert decision.estimate is None


def test_fingerprints_are_never_paired() -> None:
    """OPS-13: P, RLD and MD always share one fingerprint, whatever the others have cached."""
    old = [replace(view, id=view.id + "-old", fingerprint="v1") for view in (P1, R1)]
    new = [replace(view, fingerprint="v2") for view in (P1, R1, M1)]
    hits = {"p1-old": Hit(20_000), "r1-old": Hit(20_000), "m1": Hit(0)}
    decision = decide(facts(hits=hits), snapshot(*old, *new))
    assert decision.plan == Relay("p1", "r1", "m1", "wan_slow", ROUTE)
    assert placed(decision, Role.P).rejected == {"p1-old": "other_fingerprint"}
    assert placed(decision, Role.RLD).rejected == {"r1-old": "other_fingerprint"}


def test_salted_prompts_keep_away_from_instances_that_mix_salts() -> None:
    """TEN-05: an instance that was seen to share KV across salts serves only prompts without one."""
    leaky = replace(M1, id="leaky", leaks_salts=True)
    fleet = snapshot(P1, R1, M1, leaky)
    decision = decide(facts(hits={"leaky": Hit(20_000)}, salted=True), fleet)
    assert decision.plan.main == "m1"
    assert placed(decision, Role.MD).rejected == {"leaky": "leaks_salts"}
    assert decide(facts(hits={"leaky": Hit(20_000), "m1": Hit(0)}), fleet).plan.main == "leaky"


def test_a_prompt_that_an_instance_cannot_hold_goes_elsewhere() -> None:
    """An instance must hold the prompt and one token."""
    small = replace(M1, id="small", max_model_len=20_000)
    exact = replace(M1, id="exact", max_model_len=20_001)
    decision = decide(facts(20_000, {}), snapshot(P1, R1, small, exact))
    assert decision.plan.main == "exact"
    assert placed(decision, Role.MD).rejected == {"small": "too_long"}


def test_full_memory_is_avoided_while_others_remain() -> None:
    """An instance with full KV memory is left out, unless it is the only one."""
    full = replace(M1, id="full", kv_usage=0.99)
    decision = decide(facts(hits={"full": Hit(20_000), "m1": Hit(0)}), snapshot(P1, R1, M1, full))
    assert decision.plan.main == "m1"
    assert placed(decision, Role.MD).rejected == {"full": "kv_full"}
    assert decide(facts(), snapshot(P1, R1, full)).plan.main == "full"


def test_the_better_link_wins() -> None:
    """Of two MD regions, the one whose link brings the KV sooner is chosen; a dead link is not used."""
    far = replace(M1, id="far", region="c")
    hits = {"m1": Hit(0), "far": Hit(0)}
    slow, fast = link(rate_bytes_per_s=1e7), link("a", "c", rate_bytes_per_s=1e9)
    decision = decide(facts(hits=hits), snapshot(P1, R1, M1, far, links=(slow, fast)))
    assert (decision.plan.main, decision.plan.link) == ("far", ("a", "c"))
    cut = decide(facts(hits=hits), snapshot(P1, R1, M1, far, links=(slow, replace(fast, up=False))))
    assert cut.plan.main == "m1"
    assert placed(cut, Role.MD).rejected == {"far": "unfed"}


def test_a_prefill_that_cannot_reach_main_is_not_chosen() -> None:
    """P must have a link to the chosen MD's region."""
    lost = replace(P1, id="lost", region="z")
    decision = decide(facts(hits={"lost": Hit(20_000), "m1": Hit(0)}), snapshot(lost, P1, R1, M1))
    assert decision.plan.prefill == "p1"
    assert placed(decision, Role.P).rejected == {"lost": "no_link"}


def test_a_conversation_stays_where_it_was() -> None:
    """Between like instances the one that served the session before is chosen."""
    twins = [replace(M1, id=f"m{index}") for index in range(4)]
    seen = snapshot(P1, R1, *twins, sessions={"s": frozenset({"m3"})})
    assert {decide(facts(hits={}, session="s"), seen, rng=draw / 4).plan.main for draw in range(4)} == {"m3"}
    assert {decide(facts(hits={}), seen, rng=draw / 4).plan.main for draw in range(4)} == {"m0", "m1", "m2", "m3"}


def test_an_empty_prompt_does_not_break_a_decision() -> None:
    """A prompt without tokens is decided like any short one."""
    assert decide(facts(0)).plan.kind == "direct"


def pairs(plan: Any, seen: Snapshot) -> list[Any]:
    """The instances of a plan."""
    by_id = {view.id: view for view in seen.instances}
    return [by_id[name] for name in (plan.prefill, plan.relay, plan.main) if name is not None]


@settings(max_examples=200)
@given(case=cases())
def test_any_plan_is_sound(case: tuple[Facts, Snapshot, Rules, random.Random]) -> None:
    """Whatever the state, a plan ends at MD or is a singular one with every condition met, on fitting instances."""
    request, seen, given_rules, rng = case
    try:
        decision = choose_plan(request, seen, given_rules, rng)
    except NoInstance as error:
        assert error.role is Role.MD
        return
    plan = decision.plan
    for placement in decision.scores:
        assert placement.chosen in placement.ids
        assert not set(placement.ids) & set(placement.rejected)
        assert all(0 <= total <= 1 + 1e-9 for total in placement.totals)
    used = pairs(plan, seen)
    assert all(view.model == request.model and not view.draining for view in used)
    assert len({view.fingerprint for view in used}) == 1
    if plan.main is None:
        assert isinstance(plan, Singular)
        assert given_rules.singular.enabled
        assert seen.alignment.gap <= given_rules.alignment.bound
        assert decision.estimate is not None
        assert decision.estimate.total_s is not None
        assert decision.estimate.missing_tokens
        assert request.unsplittable is None
        assert "relay" in given_rules.pipelines
    else:
        assert used[-1].role is Role.MD
    if plan.relay is not None:
        relay = next(view for view in used if view.id == plan.relay)
        prefill = next(view for view in used if view.id == plan.prefill)
        assert relay.role is Role.RLD
        assert relay.region == prefill.region
        assert relay.load < given_rules.relay.load_max
        assert request.unsplittable is None


@settings(max_examples=150)
@given(case=cases())
def test_unknown_hits_never_count_as_low(case: tuple[Facts, Snapshot, Rules, random.Random]) -> None:
    """IDX-11: with no hit known nothing is singular, and RLD is used only where rules force it or no MD can be fed."""
    request, seen, given_rules, rng = case
    request = replace(request, hits=dict.fromkeys(request.hits))
    try:
        plan = choose_plan(request, seen, given_rules, rng).plan
    except NoInstance:
        return
    assert not isinstance(plan, Singular)
    if isinstance(plan, Relay):
        forced = {"relay_only", "fused"} if given_rules.pipelines == ("relay",) else set()
        assert plan.reason in {"link_down", "main_down"} | forced


@settings(max_examples=150)
@given(case=cases())
def test_an_overloaded_relay_never_means_singular(case: tuple[Facts, Snapshot, Rules, random.Random]) -> None:
    """With every RLD overloaded no plan uses one."""
    request, seen, given_rules, rng = case
    crowd = tuple(replace(view, running=view.max_running) if view.role is Role.RLD else view for view in seen.instances)
    try:
        plan = choose_plan(request, replace(seen, instances=crowd), given_rules, rng).plan
    except NoInstance:
        return
    assert plan.relay is None
    assert plan.main is not None


@given(case=cases())
def test_decisions_repeat(case: tuple[Facts, Snapshot, Rules, random.Random]) -> None:
    """The same facts, snapshot, rules and random numbers give the same decision."""
    request, seen, given_rules, rng = case
    state = rng.getstate()
    outcomes = []
    for _ in range(2):
        rng.setstate(state)
        try:
            outcomes.append(str(choose_plan(request, seen, given_rules, rng)))
        except NoInstance as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


def test_kv_that_crosses_while_p_computes_needs_no_relay() -> None:
    """P has most of the prompt cached and computes the rest for longer than the KV crosses: MD has it in time."""
    slow = replace(P1, curve=PrefillCurve((1, 10_000), (0.1, 30.0)))
    hits = {"p1": Hit(19_500), "m1": Hit(0), "r1": Hit(0)}
    quick = snapshot(slow, R1, M1, links=(link(rate_bytes_per_s=8e8),))
    assert decide(facts(20_000, hits), quick).plan == Direct("p1", "m1", "hit_within_bound", ROUTE)
    late = snapshot(slow, R1, M1, links=(link(rate_bytes_per_s=8e8, overlaps_prefill=False),))
    assert decide(facts(20_000, hits), late).plan.kind == "relay"
