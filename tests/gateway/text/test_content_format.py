"""Whether a template takes content as parts."""

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.text.content_format import takes_parts

LOOP = "{% for part in m.content %}{{ part.text }}{% endfor %}"
OVER_MESSAGES = "{% for m in messages %}" + LOOP + "{% endfor %}"


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        (OVER_MESSAGES, True),
        (OVER_MESSAGES.replace("m.content", "m['content']"), True),
        (OVER_MESSAGES.replace("m.content", "m.content | reverse"), True),
        (OVER_MESSAGES.replace("m.content", "m.content[1:]"), True),
        (OVER_MESSAGES.replace("in messages", "in messages[1:]"), True),
        ("{% set rest = messages[1:] %}" + OVER_MESSAGES.replace("in messages", "in rest"), True),
        ("{% set a = messages %}{% set b = a %}" + OVER_MESSAGES.replace("in messages", "in b"), True),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
        (LOOP, False),
        ("{% for m in messages %}{% for call in m.tool_calls %}{{ call }}{% endfor %}{% endfor %}", False),
        ("{% for m in messages %}{% set content = m.content %}{% for p in content %}{% endfor %}{% endfor %}", True),
        ("{% for m in messages %}{% set body = m.content %}{% for p in body %}{% endfor %}{% endfor %}", False),
        ("{% macro x(content) %}{% for p in content %}{% endfor %}{% endmacro %}", False),
        (
            (
                "{% macro x(body) %}{% for p in body %}{% endfor %}{% endmacro %}"
                "{% for m in messages %}{{ x(m.content) }}{% endfor %}"
            ),
            True,
        ),
        (
            (
                "{% macro x(a, body=1) %}{% for p in body %}{% endfor %}{% endmacro %}"
                "{% for m in messages %}{{ x(1, body=m['content']) }}{% endfor %}"
            ),
            True,
        ),
        (
            (
                "{% macro x(a, body) %}{% for p in body %}{% endfor %}{% endmacro %}"
                "{% for m in messages %}{{ x(m.content, m.role) }}{% endfor %}"
            ),
            False,
        ),
        ("{% for number, m in messages | items %}{% for p in m.content %}{% endfor %}{% endfor %}", False),
        ("{% set ns = namespace() %}{% set ns.all = messages %}" + OVER_MESSAGES, False),
        ("", False),
    ],
)
def test_takes_parts(source: str, parts: bool) -> None:
    """A loop over a message's content says so, under whatever name the message or its content goes."""
    assert takes_parts(ImmutableSandboxedEnvironment().parse(source)) is parts
