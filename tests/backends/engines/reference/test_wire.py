import pytest

from backends.engines.reference.wire import BadRequest, CompletionRequest, check_supported, decode, to_params

EOS = frozenset({0})


def check(body: str, prompt_tokens: int = 3) -> BadRequest:
    """The error of a bad request."""
    with pytest.raises(BadRequest) as caught:
        request = decode(body.encode("utf-8", "surrogatepass"), CompletionRequest)
        check_supported(request)
        to_params(request, prompt_tokens, 100, 50, EOS)
    return caught.value


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ("{", None),
        ("[]", None),
        ('{"prompt": "\ud800"}', None),
        ("[" * 100_000, None),
        ("{}", "prompt"),
        ('{"prompt": 5}', "prompt"),
        ('{"prompt": [1], "max_tokens": 0}', "max_tokens"),
        ('{"prompt": [1], "max_tokens": 1e99}', "max_tokens"),
        ('{"prompt": [1], "max_tokens": 98}', "max_tokens"),
        ('{"prompt": [1], "max_tokens": 2, "min_tokens": 3}', "min_tokens"),
        ('{"prompt": [1], "temperature": -1}', "temperature"),
        ('{"prompt": [1], "temperature": NaN}', None),
        ('{"prompt": [1], "top_p": 0}', "top_p"),
        ('{"prompt": [1], "top_k": -2}', "top_k"),
        ('{"prompt": [1], "repetition_penalty": 0}', "repetition_penalty"),
        ('{"prompt": [1], "logprobs": 21}', "logprobs"),
        ('{"prompt": [1], "logit_bias": {"x": 1}}', "logit_bias"),
        ('{"prompt": [1], "logit_bias": {"' + "9" * 5000 + '": 1}}', "logit_bias"),
        ('{"prompt": [1], "stop_token_ids": [50]}', "stop_token_ids"),
        ('{"prompt": [1], "stop": ["x"]}', "stop"),
        ('{"prompt": [1], "n": 2}', "n"),
        ('{"prompt": [1], "echo": true}', "echo"),
        ('{"prompt": [1], "response_format": {"type": "json_object"}}', "response_format"),
        ('{"prompt": [1], "structured_outputs": {"regex": "a"}}', "structured_outputs"),
        ('{"prompt": [1], "cache_salt": ""}', "cache_salt"),
    ],
)
def test_bad_fields_are_named(body: str, param: str | None) -> None:
    """A 400 in vLLM's form says which field is wrong."""
    error = check(body)
    assert error.param == param
    assert error.body()["error"]["code"] == 400


@pytest.mark.parametrize("tokens", [0, 100])
def test_prompt_must_leave_room_for_one_token(tokens: int) -> None:
    """An empty prompt and one that fills the context are refused."""
    assert check('{"prompt": [1]}', tokens).param == "prompt"


def test_defaults_are_those_of_vllm() -> None:
    """16 tokens or what is left, temperature 1, EOS ends the answer; unknown fields are ignored."""
    request = decode(b'{"prompt": [1], "whatever": {"a": 1}}', CompletionRequest)
    params = to_params(request, 3, 100, 50, EOS)
    assert (params.max_tokens, params.temperature, params.top_k, params.eos_token_ids) == (16, 1.0, 0, EOS)
    assert to_params(request, 95, 100, 50, EOS).max_tokens == 5


def test_values_at_the_edge_are_taken() -> None:
    """-1 means no top-k, a temperature next to 0 is greedy, and a very low one stays divisible."""
    body = b'{"prompt": [1], "top_k": -1, "temperature": 1e-300, "ignore_eos": true, "max_tokens": 97}'
    params = to_params(decode(body, CompletionRequest), 3, 100, 50, EOS)
    assert (params.top_k, params.temperature, params.eos_token_ids) == (0, 0.0, frozenset())
    low = decode(b'{"prompt": [1], "temperature": 0.001}', CompletionRequest)
    assert to_params(low, 3, 100, 50, EOS).temperature == 0.01
