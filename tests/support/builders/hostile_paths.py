"""Spellings of a path that would leave a folder, as they stand in a URL."""

from __future__ import annotations

from collections.abc import Iterator

_UPS = (
    "..", "%2e%2e", ".%2e", "%252e%252e", "%25252e%25252e", "%c0%ae%c0%ae", "%u002e%u002e",
    "%E2%80%A5", "%EF%BC%8E%EF%BC%8E", "..%00", "%2e%2e%00", "...",
)  # fmt: skip
"""Two dots: plain, quoted up to four times, too long UTF-8, and characters that look like them."""
_SLASHES = ("/", "%2f", "%252f", "\\", "%5c", "%255c", "%E2%88%95", "%EF%BC%8F", "%E2%81%84", "//")


def leaving(target: str) -> Iterator[str]:
    """Paths that reach `target`, which lies some folders up, if they are believed."""
    for up in _UPS:
        for slash in _SLASHES:
            yield f"{up}{slash}" * 2 + target.replace("/", slash)
    for depth in (1, 3, 4, 20):
        yield "../" * depth + target
    for start in ("x/..", "./.", "x/./..", "%2e", "."):
        yield f"{start}/../{target}"
        yield f"{start}/{target}"


def absolute(path: str) -> Iterator[str]:
    """Spellings of an absolute path."""
    for slash in ("/", "%2f", "%252f", "\\", "%5c", "//", "%2f%2f"):
        yield slash + path.lstrip("/")
    bare = path.lstrip("/")
    yield from (f"file:///{bare}", f"file:/{bare}", f"C:/{bare}", f"C:%5c{bare}")


def odd() -> Iterator[str]:
    """Paths that no file may have."""
    yield from ("a%00b", "a%0ab", "a%0d%0ab", "a%7fb", "a%5cb", "%ff%fe", "a/%ed%a0%80", "a#b")
    yield from ("a%23b", "x" * 300, "/".join(["x" * 150] * 8), "a//b", ".gangline-tmp-x")
