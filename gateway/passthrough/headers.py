"""Which headers cross the gateway. What is not listed stays behind: credentials, framing and hop-by-hop headers."""

from collections.abc import Mapping

from starlette.datastructures import Headers

REQUEST_HEADERS = ("accept", "anthropic-beta", "anthropic-version", "openai-beta", "traceparent", "tracestate")
ANSWER_HEADERS = (b"cache-control", b"content-disposition", b"content-encoding", b"content-type", b"retry-after")


def pick_request_headers(headers: Headers, content_type: str, request_id: str) -> dict[str, str]:
    """Return what a server is sent beside its own key; framing follows from the body as it is written anew."""
    picked = {name: headers[name] for name in REQUEST_HEADERS if name in headers}
    return picked | {"content-type": content_type, "x-request-id": request_id}


def pick_answer_headers(headers: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """Return what a client is sent of a server's headers, which have lower-case names."""
    return [(name, headers[name]) for name in ANSWER_HEADERS if name in headers]
