"""URLs of servers as people write them in settings."""

import base64
from urllib.parse import unquote, urlsplit, urlunsplit


def root_of(url: str) -> str:
    """Return the root of an API: without ``/v1``, which each path brings, and a slash at the end."""
    parts = urlsplit(url.strip())
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return urlunsplit((parts.scheme.lower(), parts.netloc, path, "", ""))


def without_credentials(url: str) -> str:
    """Return a URL that may be shown."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query, parts.fragment))


def has_credentials(url: str) -> bool:
    """Say whether a URL names a user or a password."""
    return "@" in urlsplit(url).netloc


def basic_auth(url: str) -> str | None:
    """Return the Authorization header that a URL's credentials stand for; None: it has none."""
    parts = urlsplit(url)
    if not has_credentials(url):
        return None
    pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return "Basic " + base64.b64encode(pair.encode()).decode("ascii")
