"""A chat request's prompt as the gateway makes it."""

from collections.abc import Mapping
from typing import Any

from gateway.api.chat import check_messages, find_values
from gateway.errors import GatewayError
from gateway.text.template import ChatTemplate, TemplateRejected


def render_here(template: ChatTemplate, body: Mapping[str, Any]) -> str | None:
    """Return the prompt's text; None: the request is refused."""
    values = find_values(body.get("chat_template_kwargs"), body.get("reasoning_effort"))
    continued = bool(body.get("continue_final_message"))
    try:
        check_messages(body["messages"])
        return template.render(
            body["messages"],
            tools=body.get("tools"),
            add_generation_prompt=body.get("add_generation_prompt") is not False and not continued,
            continue_final_message=continued,
            values=values,
        )
    except (TemplateRejected, GatewayError):
        return None
