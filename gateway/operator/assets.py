"""The page's own files, as they are in ``page``; nothing on it comes from anywhere else."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

FOLDER = Path(__file__).parent / "page"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file of the page."""

    body: bytes
    media_type: str
    etag: str

    def answer(self, request: Request) -> Response:
        """Return it, or say that the browser has it already."""
        headers = HEADERS | {"etag": self.etag}
        if request.headers.get("if-none-match") == self.etag:
            return Response(status_code=304, headers=headers)
        return Response(self.body, media_type=self.media_type, headers=headers)


def read_assets(folder: Path = FOLDER) -> dict[str, Asset]:
    """Return the files by name."""
    return {path.name: _read(path) for path in sorted(folder.iterdir()) if path.suffix in TYPES}


def _read(path: Path) -> Asset:
    body = path.read_bytes()
    return Asset(body, TYPES[path.suffix], f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"')
