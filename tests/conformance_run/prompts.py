"""A chat request's prompt as the gateway makes it."""

from collections.abc import Mapping
from typing import Any

from gateway.api.chat import check_messages
from gateway.errors import GatewayError
from gateway.text.template import ChatTemplate, TemplateRejected


def render_here(template: ChatTemplate, body: Mapping[str, Any]) -> str | None:
    """Return the prompt's text; None: the request is refused."""
    try:
        check_messages(body["messages"])
        return template.render_chat(body)
    except (TemplateRejected, GatewayError):
        return None
