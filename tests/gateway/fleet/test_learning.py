"""What requests teach, in one process and in several."""

from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx

from gateway.fleet.learning import Learning
from gateway.telemetry.metrics import Metrics
from policies.output_length import length_quantile
from policies.plans import Decision, PassThrough
from policies.rules import Rules, SingularRules
from policies.singular import relay_finished_first
from policies.types import Alignment, Hit
from tests.gateway.fleet.seams import Clock
from tests.policies.build import MODEL, decide, facts, rules, snapshot

WINDOW_S = Rules().alignment.window_s
QUICK = rules(output_length={"min_samples": 1, "memory_samples": 100})


def warm_at_p() -> Decision:
    """A relay whose P had 10,000 of 20,000 tokens and whose MD had none."""
    return decide(facts(20_000, {"p1": Hit(10_000), "r1": Hit(0), "m1": Hit(0)}))


def exchange(teller: Learning, listener: Learning) -> None:
    """Tell one process what another has learnt, with nothing else known anywhere."""
    news = teller.take_news(100)
    for model, hits in news.hits.items():
        listener.learn_hits(model, hits)
    for key, lengths in news.lengths.items():
        listener.learn_lengths(key, lengths.counts)


def test_decisions_count_for_alignment_and_budget() -> None:
    """A decided request counts its hits at P and at MD, and as one of all requests."""
    learning = Learning(Clock())
    learning.note_decision(warm_at_p(), Rules())
    assert learning.alignment(MODEL) == Alignment(20_000, 10_000, 0, 1000.0)
    assert (learning.singular(MODEL).used, learning.singular(MODEL).total) == (0, 1)
    learning.note_converted(MODEL, Rules())
    assert (learning.singular(MODEL).used, learning.singular(MODEL).total) == (1, 1)
    assert learning.alignment("other") == Alignment()


def test_alignment_and_budget_are_shown() -> None:
    """The gauges of a model tell how far MD is behind P and how much of the singular budget is used."""
    learning, metrics = Learning(Clock()), Metrics()
    learning.note_decision(warm_at_p(), Rules())
    learning.note_converted(MODEL, Rules())
    learning.show_metrics([MODEL, "other"], SingularRules(budget=0.25), metrics)
    read = metrics.registry.get_sample_value
    assert read("pdd_alignment_gap", {"model": MODEL}) == 0.5
    assert read("pdd_singular_used", {"model": MODEL}) == 4.0
    assert read("pdd_alignment_gap", {"model": "other"}) == read("pdd_singular_used", {"model": "other"}) == 0.0


def test_plans_without_two_caches_say_nothing_of_alignment() -> None:
    """A request that only MD serves counts as one of all requests, and not for alignment."""
    learning = Learning(Clock())
    learning.note_decision(Decision(PassThrough("m1", "no_prefill"), facts(20_000), None, ()), Rules())
    assert learning.singular(MODEL).total == 1
    assert learning.alignment(MODEL) == Alignment()
    assert not learning.take_news(1).hits


def test_lengths_are_learnt_by_model_and_tenant() -> None:
    """A tenant's expectation comes from its own answers to the same model; a hint or a limit goes before."""
    learning = Learning(Clock())
    assert learning.expected_output(MODEL, "t", None, None, QUICK) is None
    learning.note_length(MODEL, "t", 64, QUICK)
    assert learning.expected_output(MODEL, "t", None, None, QUICK) in range(64, 80)
    assert learning.expected_output(MODEL, "t", 10, None, QUICK) == 10
    assert learning.expected_output(MODEL, "t", None, 7, QUICK) == 7
    assert learning.expected_output(MODEL, "u", None, None, QUICK) is None
    assert learning.expected_output("other", "t", None, None, QUICK) is None


def test_too_many_tenants_are_not_learnt() -> None:
    """Beyond the bound no further tenant is learnt of, whether by its answers, by questions or from others."""
    learning = Learning(Clock(), most_tenants=3)
    for number in range(3):
        learning.note_length(MODEL, str(number), 64, QUICK)
    lengths = learning.lengths(MODEL, "0")
    learning.take_news(3)
    learning.note_length(MODEL, "new", 64, QUICK)
    learning.learn_lengths((MODEL, "new"), lengths)
    assert learning.expected_output(MODEL, "new", None, None, QUICK) is None
    assert not learning.take_news(1).lengths
    learning.note_length(MODEL, "0", 64, QUICK)
    assert learning.lengths(MODEL, "0").samples == 2


def test_news_are_handed_out_once_and_oldest_first() -> None:
    """Each piece of news is handed out once; of the tenants, those that have waited longest come first."""
    learning = Learning(Clock())
    learning.note_decision(warm_at_p(), Rules())
    for tenant in ("a", "b", "a", "c"):
        learning.note_length(MODEL, tenant, 64, QUICK)
    first, second, third = learning.take_news(2), learning.take_news(2), learning.take_news(2)
    assert list(first.hits) == [MODEL] and not second.hits and not third.hits
    assert [[tenant for _, tenant in news.lengths] for news in (first, second, third)] == [["a", "b"], ["c"], []]
    assert first.lengths[MODEL, "a"].counts.samples == 2


def test_news_that_could_not_be_told_stay() -> None:
    """News that come back are told again together with what was learnt meanwhile, as if they had never left."""
    clock = Clock()
    told, untold = Learning(clock), Learning(clock)
    for learning in (told, untold):
        learning.note_decision(warm_at_p(), Rules())
        learning.note_length(MODEL, "t", 64, QUICK)
    news = untold.take_news(100)
    clock.now_s += WINDOW_S
    for learning in (told, untold):
        learning.note_decision(warm_at_p(), Rules())
        learning.note_length(MODEL, "t", 8, QUICK)
        learning.note_length(MODEL, "u", 8, QUICK)
    untold.put_back(news)
    expected, found = told.take_news(100), untold.take_news(100)
    assert found.hits[MODEL].prompt_tokens == approx(expected.hits[MODEL].prompt_tokens)
    assert list(found.lengths) == list(expected.lengths)
    for key, lengths in expected.lengths.items():
        assert found.lengths[key].keep == approx(lengths.keep)
        assert found.lengths[key].counts.counts == approx(lengths.counts.counts)
        assert found.lengths[key].counts.samples == lengths.counts.samples


def test_what_others_saw_joins_what_was_seen_meanwhile() -> None:
    """What comes from others takes the place of what was told before, and what was learnt since then is added."""
    clock = Clock()
    here, there = Learning(clock), Learning(clock)
    there.note_decision(warm_at_p(), Rules())
    there.note_length(MODEL, "t", 64, QUICK)
    here.take_news(100)
    here.note_decision(warm_at_p(), Rules())
    here.note_length(MODEL, "t", 8, QUICK)
    exchange(there, here)
    assert here.alignment(MODEL).prompt_tokens == approx(40_000)
    assert here.alignment(MODEL).gap == approx(0.5)
    assert here.lengths(MODEL, "t").samples == 2
    assert sum(here.lengths(MODEL, "t").counts) == approx(1.99)


def test_hits_fade_by_the_local_clock_between_exchanges() -> None:
    """Hits are brought to the present with the window of the model's rules."""
    clock = Clock()
    learning = Learning(clock)
    learning.note_decision(warm_at_p(), rules(alignment={"window_s": 10.0}))
    clock.now_s += 10.0
    faded = learning.faded_hits(MODEL, learning.alignment(MODEL))
    assert faded.prompt_tokens == approx(20_000 * 0.36788, rel=1e-4)
    assert faded.at_s == 1010.0
    assert faded.gap == approx(0.5)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 4000)), min_size=1, max_size=30))
def test_two_processes_expect_what_one_would(answers: list[tuple[bool, int]]) -> None:
    """Answers spread over two processes, told after each one, make the expectation that one process would have."""
    clock = Clock()
    alone, here, there = Learning(clock), Learning(clock), Learning(clock)
    for is_here, tokens in answers:
        alone.note_length(MODEL, "t", tokens, QUICK)
        teller, listener = (here, there) if is_here else (there, here)
        teller.note_length(MODEL, "t", tokens, QUICK)
        teller.take_news(1)
        listener.learn_lengths((MODEL, "t"), teller.lengths(MODEL, "t"))
    expected = alone.lengths(MODEL, "t")
    for learning in (here, there):
        found = learning.lengths(MODEL, "t")
        assert found.samples == expected.samples
        assert found.counts == approx(expected.counts)
        assert length_quantile(found, 0.5) == length_quantile(expected, 0.5)


@settings(max_examples=50)
@given(
    arrivals=st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from([0.0, 0.1, 60.0, 5000.0]),
            st.sampled_from(["planned", "live", "restart"]),
        ),
        min_size=1,
        max_size=150,
    ),
    budget=st.sampled_from([0.0, 0.04, 0.25]),
)
def test_the_budget_holds_over_all_processes(arrivals: list[tuple[int, float, str]], budget: float) -> None:
    """However requests, live stops and restarts fall on three processes, they stay within the common budget."""
    limits = rules(singular={"budget": budget, "budget_window_s": 60.0, "assumed_itl_s": 0.001})
    clock = Clock()
    processes = [Learning(clock) for _ in range(3)]
    singular = total = 0
    for number, wait_s, kind in arrivals:
        clock.now_s += wait_s
        if kind == "restart":
            processes[number] = Learning(clock)
        learning = processes[number]
        request = facts(100_000, predicted_output_tokens=800 if kind == "live" else 50)
        seen = snapshot(singular=learning.singular(MODEL), now_s=clock())
        decision = decide(request, seen, limits)
        learning.note_decision(decision, limits)
        total, singular = total + 1, singular + decision.plan.ends_on_relay
        if kind == "live" and decision.plan.kind == "relay":
            seen = snapshot(singular=learning.singular(MODEL), now_s=clock())
            if relay_finished_first(decision.plan, request, 50, seen, limits).stop_transfer:
                learning.note_converted(MODEL, limits)
                singular += 1
        assert singular <= budget * total + 1e-9
        uses = [one.singular(MODEL) for one in processes]
        assert all(use.used <= budget * use.total + 1e-9 for use in uses)
