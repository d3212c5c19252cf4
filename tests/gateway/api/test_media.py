"""Addresses that a server would fetch."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.media import check_media, is_public
from gateway.errors import GatewayError


@pytest.mark.parametrize(
    "address",
    [
        "data:image/png;base64,iVBORw0KGgo=",
        "https://example.com/a.png?x=1#y",
        "HTTP://EXAMPLE.COM:8080/",
        "https://example.com./a",
        "https://93.184.216.34/a.png",
        "https://[2606:2800:220:1::1]/a.png",
    ],
)
def test_public(address: str) -> None:
    """Data and public hosts are fetched by whoever wants to."""
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "file:///etc/passwd",
        "/etc/passwd",
        "gopher://example.com/",
        "ftp://example.com/",
        "http://169.254.169.254/latest/meta-data",
        "http://[::ffff:169.254.169.254]/",
        "http://[64:ff9b::a9fe:a9fe]/",
        "http://[2002:a9fe:a9fe::]/",
        "http://[::a9fe:a9fe]/",
        "http://[fd00:ec2::254]/",
        "http://[fe80::1%25eth0]/",
        "http://[::1]/",
        "http://127.1/",
        "http://2852039166/",
        "http://0xa9.0xfe.0xa9.0xfe/",
        "http://0251.0376.0251.0376/",
        "http://0/",
        "http://10.0.0.1/",
        "http://100.64.0.1/",
        "http://224.0.0.1/",
        "http://localhost/",
        "http://LOCALHOST./",
        "http://metadata/",
        "http://metadata.google.internal/",
        "http://md1.pdd.svc/",
        "http://router.lan/",
        "http://example.com@169.254.169.254/",
        "http://169.254.169.254\\@example.com/",
        "http://example.com\n@169.254.169.254/",
        "http://１６９.254.169.254/",
        "http://169。254。169。254/",
        "http://%31%36%39.254.169.254/",
        "http://[::1",
        "http://-.-/",
        "http:///x",
        "https:example.com",
    ],
)
def test_not_public(address: str) -> None:
    """Files, other schemes, private hosts in every spelling, and what two readers could read in two ways are not."""
    assert not is_public(address)


@given(st.text(max_size=60))
def test_never_fails(text: str) -> None:
    """Any text is a yes or a no."""
    assert is_public(text) in (True, False)
    assert is_public(f"http://{text}/") in (True, False)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (
            {"messages": [{"content": [{"type": "image_url", "image_url": {"url": "file:///x"}}]}]},
            "messages[0].content[0].image_url",
        ),
        ({"messages": [{"content": [{"type": "image_url", "image_url": "file:///x"}]}]}, "messages[0].content[0]"),
        ({"input": [{"content": [{"type": "input_file", "file_url": "http://10.0.0.1/"}]}]}, "input[0].content[0]"),
        ({"tools": [{"type": "mcp", "server_url": "http://localhost:1/"}]}, "tools[0]"),
        ({"messages": [{"content": [{"source": {"type": "url", "url": "http://127.0.0.1"}}]}]}, None),
        ({"image": "file:///etc/passwd"}, "image"),
        ({"image": "/etc/passwd"}, "image"),
        ({"image": "../secrets"}, "image"),
        ({"mask": " FILE:/etc/passwd"}, "mask"),
        ({"image": "C:\\keys"}, "image"),
        ({"messages": [{"content": [{"type": "image_url", "image_url": ["http://10.0.0.1/a"]}]}]}, None),
        ({"tools": [{"type": "mcp", "connector_url": "http://localhost:1/"}]}, "tools[0]"),
        ({"input": [{"content": [{"type": "input_file", "file_data": "file:///etc/passwd"}]}]}, None),
    ],
)
def test_finds_addresses(body: Any, param: str | None) -> None:
    """Addresses are found where any API puts them, and the place is named, not the address."""
    with pytest.raises(GatewayError) as refused:
        check_media(body)
    assert refused.value.code == "forbidden_url"
    assert param is None or refused.value.param == param
    assert "http" not in refused.value.message and "file" not in refused.value.message


def test_leaves_the_rest_alone() -> None:
    """Text that holds addresses, and schemas with such names, are no addresses to fetch."""
    check_media(
        {
            "messages": [
                {"content": "see file:///etc/passwd"},
                {"content": [{"type": "text", "text": "http://10.0.0.1"}]},
            ],
            "input": ["/etc/passwd is a file", "http://10.0.0.1"],
            "prompt": "/help",
            "image": "iVBORw0KGgo=",
            "source": {"type": "base64", "media_type": "image/jpeg", "data": "/9j/4AAQSkZJRg=="},
            "voice": "alloy",
            "response_format": {"type": "json_schema", "json_schema": {"schema": {"pattern": "/x/"}}},
            "tools": [{"function": {"parameters": {"properties": {"url": {"type": "string"}}}}}],
        }
    )
