"""Which parsers a chat template calls for: it shows past calls and reasoning in the model's own spelling."""

from collections.abc import Sequence

Rule = tuple[tuple[str, ...], str]

TOOLS: Sequence[Rule] = (
    (("]<]minimax[>[",), "none"),
    (("<|channel|>", "<|message|>"), "openai"),
    (("<|open|>call",), "kimi_k3"),
    (("<|tool_call_begin|>", "<|tool_call_argument_begin|>"), "kimi_k2"),
    (("<｜tool▁sep｜>", "```json"), "deepseek_v3"),
    (("<｜tool▁sep｜>",), "deepseek_v31"),
    (("｜DSML｜ calls",), "deepseek_v41"),
    (("｜DSML｜function_calls",), "deepseek_v32"),
    (("｜DSML｜tool_calls",), "deepseek_v4"),
    (("<minimax:tool_call>",), "minimax_m2"),
    (("<arg_key>", "<arg_value>"), "glm45"),
    (("<seed:tool_call>",), "seed_oss"),
    (("<function=", "<parameter="), "qwen3_coder"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<|tool_call>", "call:"), "gemma4"),
    (("<start_function_call>",), "functiongemma"),
    (("<|python_start|>",), "llama4_pythonic"),
    (("<|start_header_id|>", '"parameters": '), "llama3_json"),
    (("<|start_header_id|>", '\\"parameters\\": '), "llama3_json"),
    (("<tool_call>", "arguments"), "hermes"),
)
"""The first one whose words are all in the template; none: calls in a spelling that looks like another one."""

REASONING: Sequence[Rule] = (
    (("<|channel|>", "<|message|>"), "openai_gptoss"),
    (("<|open|>think",), "kimi_k3"),
    (("<|channel>", "<channel|>"), "gemma4"),
    (("[THINK]",), "mistral"),
    (("<seed:think>",), "seed_oss"),
    (("<think>",), "think"),
    (("</think>",), "think"),
)
"""Likewise. A template with think tags says by its own last words whether the answer begins with reasoning."""


def guess_parsers(template: str) -> tuple[str | None, str | None]:
    """Return (tool parser, reasoning parser); None where the template speaks of none that is known."""
    return _guess(template, TOOLS), _guess(template, REASONING)


def _guess(template: str, rules: Sequence[Rule]) -> str | None:
    return next((name for words, name in rules if all(word in template for word in words)), None)
