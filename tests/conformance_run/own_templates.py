"""Small templates that read conversations in the ways that real ones do, for recordings of vLLM's prompts."""

ROLES = (
    "{%- for m in messages -%}<|im_start|>{{ m['role'] }}{{ ' ' + m.name if m.name }}\n{{ m['content'] }}<|im_end|>\n"
    "{%- endfor -%}{{ '<|im_start|>assistant\n' if add_generation_prompt }}"
)
CALLS_AS_JSON = (
    "{{ bos_token }}{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{% if m.content %}{{ m.content | trim }}{% endif %}"
    "{% for call in m.tool_calls or [] %}{{ call | tojson }}{{ call.function.arguments | items | list }}{% endfor %}"
    "{{ '{' ~ m.tool_call_id ~ '}' if m.tool_call_id }}{{ eos_token }}{% endfor %}"
)
PARTS = (
    "{% set rest = messages[1:] %}{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for part in m.content | list %}({{ part.text }}){% endfor %}{% endif %}"
    "{% for call in m.tool_calls or [] %}{{ call.function.name }}={{ call.function.arguments }}{% endfor %}{% endfor %}"
)
PARTS_IN_A_MACRO = (
    "{% macro show(body) %}{% if body is string %}{{ body }}{% else %}{% for part in body %}{{ part | tojson }}"
    "{% endfor %}{% endif %}{% endmacro %}{% for m in messages %}<{{ m.role }}>{{ show(m.content) }}{% endfor %}"
)
DEVELOPERS = (
    "{% for m in messages %}{% if m.role == 'developer' %}<dev tools={{ m.tools }}>{% elif m.role == 'system' and not "
    "loop.first %}{{ raise_exception('System must come first') }}{% endif %}{{ m.content }};{% endfor %}"
)
THOUGHTS = (
    "{% for m in messages %}<{{ m.role }}>{% generation %}{% set own = m.reasoning_content or m.reasoning %}"
    "{{ '<think>' + own + '</think>' if own }}{% endgeneration %}{{ own }}{{ m.content }}{% endfor %}"
    "{{ reasoning_effort }}{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    "{{ 'off' if thinking is false }}{{ documents }}{{ tools }}"
)

OWN_TEMPLATES = {
    "roles": ROLES,
    "calls_as_json": CALLS_AS_JSON,
    "parts": PARTS,
    "parts_in_a_macro": PARTS_IN_A_MACRO,
    "developers": DEVELOPERS,
    "thoughts": THOUGHTS,
}
