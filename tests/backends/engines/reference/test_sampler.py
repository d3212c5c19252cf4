from collections import Counter
from typing import Any

import pytest
import torch

from backends.engines.dialect import LOWEST_LOGPROB
from backends.engines.reference.sampler import Sampler
from backends.engines.reference.sequence import Params, Sequence

LOGITS = torch.tensor([0.0, 1.0, 3.0, 2.0])


def sample(
    params: Params, logits: torch.Tensor = LOGITS, prompt: tuple[int, ...] = (1,), output: tuple[int, ...] = ()
) -> int:
    """One token for a sequence with this prompt and output."""
    return Sampler().sample(logits[None].clone(), [sequence(params, prompt, output)])[0].token_id


def sequence(params: Params, prompt: tuple[int, ...] = (1,), output: tuple[int, ...] = ()) -> Sequence:
    """A sequence that has generated ``output``."""
    made = Sequence("s", list(prompt), params, 16)
    made.tokens.extend(output)
    return made


def greedy(**changes: Any) -> Params:
    """Greedy parameters."""
    return Params(max_tokens=9, temperature=0.0, **changes)


@pytest.mark.parametrize(
    ("params", "output", "token"),
    [
        (greedy(), (), 2),
        (greedy(presence_penalty=2.0), (2,), 3),
        (greedy(frequency_penalty=0.6), (2, 2), 3),
        (greedy(repetition_penalty=2.0), (2,), 3),
        (greedy(logit_bias={0: 10.0}), (), 0),
        (greedy(min_tokens=2, eos_token_ids=frozenset({2}), stop_token_ids=frozenset({3})), (0,), 1),
        (greedy(min_tokens=2, eos_token_ids=frozenset({2})), (0, 0), 2),
    ],
)
def test_penalties_bias_and_min_tokens_change_the_best_token(
    params: Params, output: tuple[int, ...], token: int
) -> None:
    """Each of them acts on the tokens that it is about."""
    assert sample(params, output=output) == token


def test_repetition_penalty_counts_the_prompt_and_the_others_do_not() -> None:
    """As in vLLM."""
    assert sample(greedy(repetition_penalty=2.0), prompt=(2,)) == 3
    assert sample(greedy(presence_penalty=2.0), prompt=(2,)) == 2


@pytest.mark.parametrize(
    ("params", "allowed"),
    [
        (Params(9, top_k=1), {2}),
        (Params(9, top_k=2), {2, 3}),
        (Params(9, top_p=0.5), {2}),
        (Params(9, top_p=0.7), {2, 3}),
        (Params(9, min_p=0.3), {2, 3}),
        (Params(9), {0, 1, 2, 3}),
    ],
)
def test_filters_leave_the_likeliest_tokens(params: Params, allowed: set[int]) -> None:
    """Two hundred draws see all that is allowed and nothing else."""
    sampler = Sampler()
    logits = LOGITS.repeat(200, 1)
    seen = {token.token_id for token in sampler.sample(logits, [sequence(params)] * 200)}
    assert seen == allowed


def test_draws_follow_the_distribution() -> None:
    """Frequencies of many draws are near the probabilities."""
    drawn = Sampler().sample(LOGITS.repeat(4000, 1), [sequence(Params(9))] * 4000)
    counts = Counter(token.token_id for token in drawn)
    for token, probability in enumerate(torch.softmax(LOGITS, -1).tolist()):
        assert abs(counts[token] / 4000 - probability) < 0.04


def test_a_seeded_draw_depends_on_seed_and_position_only() -> None:
    """The same on another engine and in another batch; other positions draw anew."""
    logits = torch.zeros(1, 1000)
    seeded = Params(9, seed=5)
    alone = Sampler().sample(logits, [sequence(seeded)])[0]
    among = Sampler().sample(logits.repeat(2, 1), [sequence(Params(9)), sequence(seeded)])[1]
    later = Sampler().sample(logits, [sequence(seeded, output=(alone.token_id,))])[0]
    assert alone == among
    assert later != alone


def test_logprobs_are_of_the_raw_logits_and_finite() -> None:
    """The chosen token's and the best ones', before penalties; an impossible token gets a finite number."""
    logits = torch.tensor([[0.0, 1.0, 3.0, -torch.inf]])
    params = Params(9, temperature=0.0, logprobs=4, logit_bias={0: 10.0})
    (token,) = Sampler().sample(logits.clone(), [sequence(params)])
    wanted = torch.log_softmax(logits[0], -1)
    assert token.token_id == 0
    assert token.logprob == pytest.approx(float(wanted[0]))
    assert [index for index, _ in token.top] == [2, 1, 0, 3]
    assert token.top[-1][1] == LOWEST_LOGPROB
