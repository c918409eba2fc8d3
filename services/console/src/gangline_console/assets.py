"""Static files, with one hash of all their contents in each address.

The hash is a folder of the address, so a module's relative imports lead to files of the same
version, and browsers may keep each file forever.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

PACKAGE = Path(__file__).parent
_KINDS = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_FOREVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class Assets:
    """The files of `static/`, and the scripts of `pages/` as `pages/NAME/FILE`."""

    files: dict[str, Path]
    version: str
    _packed: dict[str, bytes] = field(default_factory=dict, repr=False)

    @classmethod
    def load(cls, package: Path = PACKAGE) -> Self:
        """Read all files for their hash."""
        found = {
            path.relative_to(root).as_posix(): path
            for root, folder in ((package / "static", "static"), (package, "pages"))
            for path in sorted((package / folder).rglob("*"))
            if path.suffix in _KINDS
        }
        digest = hashlib.sha256()
        for name, path in sorted(found.items()):
            digest.update(f"{name}\0".encode())
            digest.update(path.read_bytes())
        return cls(found, digest.hexdigest()[:12])

    def url(self, name: str) -> str:
        """The address of a file. Raises KeyError for one that is not there."""
        if name not in self.files:
            raise KeyError(f"no static file {name}; `make setup` fetches those of vendor/")
        return f"/console/static/{self.version}/{name}"

    async def serve(self, request: Request) -> Response:
        """`/console/static/{version}/{name}`; another version's address has the new file."""
        name = request.path_params["name"]
        path = self.files.get(name)
        if path is None:
            return PlainTextResponse("There is no such file.\n", 404)
        current = request.path_params["version"] == self.version
        headers = {
            "cache-control": _FOREVER if current else "no-cache",
            "content-type": _KINDS[path.suffix],
            "vary": "Accept-Encoding",
        }
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(path.read_bytes(), headers=headers)
        if name not in self._packed:
            self._packed[name] = gzip.compress(path.read_bytes(), 9, mtime=0)
        return Response(self._packed[name], headers={**headers, "content-encoding": "gzip"})
