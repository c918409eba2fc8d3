"""Reads images from a registry (OCI distribution): tokens, retries, downloads that resume.

Bytes are compared with their digests before anybody reads them. No error holds the text of an
answer, only its HTTP status. A registry is chosen by users: its answers are bounded in size and
time, and `connections` bounds where it leads.
"""

from __future__ import annotations

import email.utils
import hashlib
import ipaddress
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO, TypeVar
from urllib.parse import urlencode, urlsplit

import structlog
import urllib3
from urllib3.exceptions import (
    HTTPError,
    MaxRetryError,
    NameResolutionError,
    NewConnectionError,
    ProtocolError,
    ProxyError,
    SSLError,
    TimeoutError,  # noqa: A004 -- not the built-in one
)
from urllib3.response import BaseHTTPResponse

from gangline_schemas.image_reference import DEFAULT_REGISTRY, ImageReference
from gangline_storage.durable import NO_SPACE

from .connections import Bounds, ForbiddenAddress, ended_when, open_pools
from .credentials import Login
from .manifests import LISTS, SINGLE, Blob
from .problems import ImageDamaged, ImageDenied, ImageNotFound, NodeDiskFull, RegistryAway

log = structlog.get_logger(__name__)

ResultT = TypeVar("ResultT")

_DOCUMENT_LIMIT = 4 << 20
_CHUNK = 1 << 20
_PACE_S = 60.0
"""In so long at least _CHUNK bytes come, or the rest of an answer; else it is broken off."""
_TRIES = 6
_FIRST_DELAY_S = 0.25
_LONGEST_WAIT_S = 60.0
_CHALLENGE = re.compile(r'\b(\w{1,32})="([^"]*)"')
"""Takes time in proportion to the header, however the registry makes it."""
_PASSING = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}
_WORDS: tuple[tuple[type[Exception], str], ...] = (
    (NameResolutionError, "has a name that this node cannot resolve"),
    (NewConnectionError, "takes no connections"),
    (TimeoutError, "did not answer in time"),
    (SSLError, "has a certificate that this node does not trust"),
    (ProxyError, "is behind a proxy that did not connect"),
    (ProtocolError, "ended the connection in the middle of an answer"),
)
"""Words for users, of the first kind of error that fits."""
_UNREADABLE = (ValueError, OverflowError, RecursionError)
"""Raised for headers and tokens that make no sense, such as an address that is none."""


class _Again(Exception):
    """A failure that may pass."""

    def __init__(self, detail: str, after_s: float | None = None) -> None:
        super().__init__(detail)
        self.after_s = after_s


@dataclass(slots=True)
class _Pace:
    """How fast an answer comes."""

    since_s: float = field(default_factory=time.monotonic)
    bytes_since: int = 0

    def came(self, more_bytes: int) -> None:
        """So many more bytes are there."""
        self.bytes_since += more_bytes
        if self.bytes_since >= _CHUNK:
            self.since_s, self.bytes_since = time.monotonic(), 0

    @property
    def too_slow(self) -> bool:
        """Whether _PACE_S are over without _CHUNK bytes."""
        return time.monotonic() - self.since_s > _PACE_S


@dataclass(frozen=True, slots=True)
class RegistryOptions:
    """`mirror`: the URL that is asked in place of docker.io; `plain_http`: hosts without TLS."""

    mirror: str | None = None
    plain_http: frozenset[str] = frozenset()
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 30.0


class Registry:
    """One image's repository, as one team may read it. May be used by many threads."""

    def __init__(
        self,
        image: ImageReference,
        login: Login | None,
        options: RegistryOptions,
        stopping: threading.Event,
    ) -> None:
        self._image = image
        self._login = login
        self._url = f"{_base(image.registry, options)}/v2/{image.repository}"
        self._stopping = stopping
        self._authorization: str | None = None
        timeout = urllib3.Timeout(connect=options.connect_timeout_s, read=options.read_timeout_s)
        retries = urllib3.Retry(
            total=None, connect=0, read=0, redirect=5, status=0, other=0,
            respect_retry_after_header=False,
        )  # fmt: skip
        self._http = open_pools(Bounds(self._url, options.plain_http), timeout, retries)

    def close(self) -> None:
        """Close its connections."""
        self._http.clear()

    def manifest(self, wanted: str) -> tuple[bytes, str, str]:
        """The document of a tag or digest: its bytes, media type and digest.

        Raises ImageProblem.
        """
        accept = {"Accept": ", ".join((*LISTS, *SINGLE))}
        url = f"{self._url}/manifests/{wanted}"

        def read() -> tuple[bytes, str, str]:
            with self._get(url, accept) as answer:
                raw = self._document(answer)
            digest = f"sha256:{hashlib.sha256(raw).hexdigest()}"
            if wanted.startswith("sha256:") and digest != wanted:
                raise ImageDamaged(self._image, f"the manifest {wanted} came as {digest}")
            return raw, answer.headers.get("Content-Type", ""), digest

        return self._retry(read)

    def document(self, blob: Blob) -> bytes:
        """A small blob. Raises ImageProblem."""

        def read() -> bytes:
            with self._get(self._blob(blob), {}) as answer:
                return self._document(answer)

        raw = self._retry(read)
        if f"sha256:{hashlib.sha256(raw).hexdigest()}" != blob.digest:
            raise ImageDamaged(self._image, f"{blob.digest} came with other bytes")
        return raw

    def download(self, blob: Blob, path: Path) -> None:
        """The blob at `path`; what is there of an earlier try is continued. Raises ImageProblem."""
        try:
            with path.open("ab") as file:
                self._retry(lambda: self._continue(blob, file), file.tell)
            with path.open("rb") as file:
                digest = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        except OSError as error:
            if error.errno in NO_SPACE:
                path.unlink(missing_ok=True)
                raise NodeDiskFull(self._image, f"no space for {blob.size:,} bytes") from None
            raise
        except ImageDamaged:
            path.unlink(missing_ok=True)
            raise
        if digest != blob.digest:
            path.unlink()
            raise ImageDamaged(self._image, f"{blob.digest} came with other bytes")

    def _blob(self, blob: Blob) -> str:
        return f"{self._url}/blobs/{blob.digest}"

    def _continue(self, blob: Blob, file: BinaryIO) -> None:
        """Add the rest of the blob to the file."""
        at = file.tell()
        if at == blob.size:
            return
        if at > blob.size:
            at = _emptied(file)
        with self._get(self._blob(blob), {"Range": f"bytes={at}-"} if at else {}) as answer:
            if answer.status != HTTPStatus.PARTIAL_CONTENT:
                _emptied(file)
            for chunk in self._chunks(answer):
                if file.tell() + len(chunk) > blob.size:
                    raise ImageDamaged(self._image, f"{blob.digest} is longer than {blob.size:,}")
                file.write(chunk)
        file.flush()
        if file.tell() < blob.size:
            raise _Again(f"the connection ended after {file.tell():,} of {blob.size:,} bytes")

    def _document(self, answer: BaseHTTPResponse) -> bytes:
        raw = bytearray()
        for chunk in self._chunks(answer):
            raw += chunk
            if len(raw) > _DOCUMENT_LIMIT:
                raise ImageDamaged(self._image, f"a document is above {_DOCUMENT_LIMIT >> 20} MiB")
        return bytes(raw)

    def _chunks(self, answer: BaseHTTPResponse) -> Iterator[bytes]:
        """The bytes of an answer as they come. Raises _Again when they come too slowly."""
        pace = _Pace()
        with ended_when(answer, lambda: self._stopping.is_set() or pace.too_slow):
            while chunk := self._next(answer, pace):
                yield chunk

    def _next(self, answer: BaseHTTPResponse, pace: _Pace) -> bytes:
        """Some bytes; none at the end."""
        try:
            chunk = answer.read1(_CHUNK, decode_content=False)
        finally:  # what was broken off may look like a whole answer, or like a registry's fault
            if self._stopping.is_set():
                raise RegistryAway(self._image, "its gang or the agent ends")
            if pace.too_slow:
                raise _Again(f"less than 1 MiB came in {_PACE_S:.0f} s")
        pace.came(len(chunk))
        return chunk

    def _retry(
        self, attempt: Callable[[], ResultT], progress: Callable[[], int] | None = None
    ) -> ResultT:
        """Try until it does not fail in a way that passes; 1 MiB more begins the count again."""
        tries, before = 0, progress() if progress is not None else 0
        while True:
            try:
                return attempt()
            except (_Again, HTTPError) as error:
                after_s = error.after_s if isinstance(error, _Again) else None
                detail = (
                    str(error) if isinstance(error, _Again) else _short(error, self._image.registry)
                )
            except ForbiddenAddress as error:
                raise ImageDenied(self._image, str(error)) from None
            except _UNREADABLE as error:
                kind = type(error).__name__  # its text may hold a token
                raise RegistryAway(self._image, f"its answer makes no sense: {kind}") from None
            if progress is not None and (now := progress()) >= before + _CHUNK:
                tries, before = 0, now
            tries += 1
            delay_s = after_s if after_s is not None else _FIRST_DELAY_S * 2 ** (tries - 1)
            if tries == _TRIES or delay_s > _LONGEST_WAIT_S:
                raise RegistryAway(self._image, f"{detail}; tried {tries} times")
            log.warning("image.retry", image=str(self._image), reason=detail, delay_s=delay_s)
            if self._stopping.wait(delay_s):
                raise RegistryAway(self._image, "its gang or the agent ends")

    def _get(self, url: str, headers: Mapping[str, str]) -> BaseHTTPResponse:
        """A successful answer; its body is not read. Raises _Again, HTTPError, ImageProblem."""
        answer = self._ask(url, headers)
        if answer.status == HTTPStatus.UNAUTHORIZED:
            challenge = answer.headers.get("WWW-Authenticate", "")
            answer.close()
            self._authorization = self._authorized(challenge)
            answer = self._ask(url, headers)
        if answer.status in {HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT}:
            return answer
        answer.close()
        self._raise_for(answer)
        raise AssertionError

    def _ask(self, url: str, headers: Mapping[str, str]) -> BaseHTTPResponse:
        own = {} if self._authorization is None else {"Authorization": self._authorization}
        sent = {**headers, **own, "Accept-Encoding": "identity"}
        return self._http.request("GET", url, headers=sent, preload_content=False)

    def _raise_for(self, answer: BaseHTTPResponse) -> None:
        host, status = self._image.registry, answer.status
        said = f"{host} answered {status}"
        if status == HTTPStatus.NOT_FOUND:
            raise ImageNotFound(self._image, said)
        if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            raise ImageDenied(self._image, f"{said}; {self._who()}")
        if status in _PASSING or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise _Again(said, _wait_of(answer.headers.get("Retry-After")))
        if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise ImageDamaged(self._image, f"{said} for the rest of a layer")
        raise RegistryAway(self._image, said)

    def _who(self) -> str:
        if self._login is None:
            return "there are no credentials for it on this node, or the image does not exist"
        return "these credentials may not read it, or the image does not exist"

    def _authorized(self, challenge: str) -> str | None:
        """The Authorization header that a challenge asks for; None: there is none to give."""
        kind, _, rest = challenge.partition(" ")
        if kind.lower() == "basic":
            return None if self._login is None else self._login.basic
        given = dict(_CHALLENGE.findall(rest))
        realm = given.get("realm", "")
        if kind.lower() != "bearer" or urlsplit(realm).scheme not in {"https", "http"}:
            return None
        asked = {"scope": f"repository:{self._image.repository}:pull"}
        asked |= {name: given[name] for name in ("service", "scope") if name in given}
        headers = {}
        if self._login is not None and _is_private(realm, self._url):
            headers["Authorization"] = self._login.basic
        url = f"{realm}{'&' if '?' in realm else '?'}{urlencode(asked)}"
        answer = self._http.request("GET", url, headers=headers, preload_content=False)
        with answer:
            if answer.status != HTTPStatus.OK:
                self._raise_for(answer)
            try:
                found = json.loads(self._document(answer))
                token = found.get("token") or found["access_token"]
            except (ValueError, KeyError, AttributeError):
                raise RegistryAway(self._image, "its token server gave no token") from None
        return f"Bearer {token}"


def _emptied(file: BinaryIO) -> int:
    """Its size from now on: `truncate` alone would leave `tell` where it was."""
    file.truncate(0)
    return file.seek(0)


def _short(error: HTTPError, host: str) -> str:
    """The kind of error, without addresses that a registry chose."""
    reason = error.reason if isinstance(error, MaxRetryError) and error.reason else error
    words = next((words for kind, words in _WORDS if isinstance(reason, kind)), None)
    return f"{host} or where it leads {words or type(reason).__name__}"


def _base(registry: str, options: RegistryOptions) -> str:
    if registry == DEFAULT_REGISTRY:
        return (options.mirror or "https://registry-1.docker.io").rstrip("/")
    plain = registry in options.plain_http or _is_loopback(registry)
    return f"{'http' if plain else 'https'}://{registry}"


def _is_loopback(registry: str) -> bool:
    """Whether it is this machine, which Docker asks without TLS as well."""
    host = urlsplit(f"//{registry}").hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_asked(registry: str, options: RegistryOptions) -> str:
    """The HOST[:PORT] that is asked: of docker.io its mirror, if there is one."""
    if registry == DEFAULT_REGISTRY and options.mirror is not None:
        return urlsplit(options.mirror).netloc
    return registry


def _is_private(realm: str, registry: str) -> bool:
    """Whether a password may be sent there: over TLS, or where the registry has none itself."""
    return urlsplit(realm).scheme == "https" or urlsplit(registry).scheme == "http"


def _wait_of(given: str | None) -> float | None:
    """The seconds of a Retry-After header."""
    if given is None:
        return None
    if given.strip().isdigit():
        return float(given)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(given).timestamp() - time.time())
    except ValueError:
        return None
