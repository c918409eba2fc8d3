"""Answers other agents: gives files of checkpoints, and confirms connections of its ranks.

    GET /v1/copies/JOB/ATTEMPT                              names of files here (`Held`)
    GET /v1/copies/JOB/ATTEMPT/step-NNNNNNNNNN/FILE         the bytes of a file
    GET /v1/layers/JOB/ATTEMPT/DIGEST/AT                    what is here of a layer, from byte AT
    GET /v1/connections/JOB/ATTEMPT/HERE/PORT/THERE/PORT    whose it is (`ConnectionAnswer`)

JOB and ATTEMPT are those of the gang that starts; what it starts from is all that it is given. A
request shows that an agent asks (peers/seal.py): 401 else. It must be of a node of that gang (403),
and the gang must not be over (404). `AT_ONCE` are answered at a time; 503 may come again.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import BinaryIO

import structlog

from gangline_schemas.base import Model
from gangline_schemas.events.scheduling import CheckpointRef
from gangline_service.thread_server import ThreadServer
from gangline_storage.errors import StoreError
from gangline_storage.shared_secret import SharedSecret
from gangline_worker.agent.decide.keys import GangKey
from gangline_worker.agent.host.connections import End, uid_of
from gangline_worker.agent.isolation.files import Owner

from .files import NAME, CopyFiles, NotGiven
from .gangs import Gangs, KnownGang
from .seal import PeerRequest, proof, same, token
from .tls import PeerTls

log = structlog.get_logger(__name__)

NODE_HEADER, NONCE_HEADER, PROOF_HEADER = "Gangline-Node", "Gangline-Nonce", "Gangline-Proof"
SCHEME = "Gangline"

_GANG = r"([a-z0-9-]{1,63})/(\d{1,9})"
_COPIES = re.compile(rf"/v1/copies/{_GANG}(?:/({NAME}))?")
_LAYERS = re.compile(rf"/v1/layers/{_GANG}/([0-9a-f]{{64}})/(\d{{1,13}})")
_END = r"([0-9a-f.:]{2,45})/(\d{1,5})"
_CONNECTIONS = re.compile(rf"/v1/connections/{_GANG}/{_END}/{_END}")
_NONCE = re.compile(r"[0-9a-f]{32}")
_KNOWN_WITHIN_S = 1.0  # the bus may bring a gang's allocation to one of its nodes a little later
_SEND_TIMEOUT_S = 5.0
_REFUSALS_LOGGED_S = 10.0


class Held(Model):
    """Names of the files of a checkpoint that a node holds, whole as far as their size tells."""

    files: tuple[str, ...]


class ConnectionAnswer(Model):
    """Whether a connection of this node is of the gang's user, or of a node without users."""

    confirmed: bool


def connection_path(job_id: str, attempt: int, here: End, there: End) -> str:
    """The path of a question about a connection."""
    ends = "/".join(f"{address}/{port}" for address, port in (here, there))
    return f"/v1/connections/{job_id}/{attempt}/{ends}"


def path_of(job_id: str, attempt: int, name: str | None = None) -> str:
    """The path of a file, or (None) of the list of files."""
    path = f"/v1/copies/{job_id}/{attempt}"
    return path if name is None else f"{path}/{name}"


def layer_path(job_id: str, attempt: int, digest: str, at: int) -> str:
    """The path of a question for the bytes of a layer from `at` on."""
    return f"/v1/layers/{job_id}/{attempt}/{digest.removeprefix('sha256:')}/{at}"


class Refused(Exception):
    """A request is not answered; the message is for this node's log."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class PeerAnswers:
    """Decides which agent is given which file; `owner` gives the user of a team's files.

    `layer` opens a packed layer of a gang's image by its digest; it may be on its way here still.
    """

    node_id: str
    secret: SharedSecret
    gangs: Gangs
    files: CopyFiles
    owner: Callable[[str], Owner | None]
    layer: Callable[[GangKey, str], BinaryIO | None]

    def admit(self, request: PeerRequest, given: str) -> KnownGang:
        """The gang that is asked for. Raises Refused and StoreError."""
        if not same(given, token(self.secret.value(), request)):
            raise Refused(HTTPStatus.UNAUTHORIZED, "no token of an agent for this")
        gang = self.gangs.live(request.job_id, request.attempt, _KNOWN_WITHIN_S)
        if gang is None:
            raise Refused(HTTPStatus.NOT_FOUND, "the attempt is over, or is unknown here")
        if request.client not in gang.node_ids:
            raise Refused(HTTPStatus.FORBIDDEN, f"{request.client} is no node of the gang")
        return gang

    def held(self, gang: KnownGang) -> Held:
        """The files here of the gang's checkpoint. Raises Refused, OSError and StoreError."""
        with _refusals():
            return Held(files=self.files.held(*self._of(gang)))

    def opened(self, gang: KnownGang, name: str) -> BinaryIO:
        """One file of it. Raises Refused, OSError and StoreError."""
        with _refusals():
            return self.files.opened(*self._of(gang), name)

    def layer_of(self, gang: KnownGang, digest: str) -> BinaryIO | None:
        """The packed layer of the gang's image; None: not yet. Raises Refused and OSError."""
        try:
            return self.layer(GangKey(gang.job_id, gang.attempt), f"sha256:{digest}")
        except FileNotFoundError:
            raise Refused(HTTPStatus.NOT_FOUND, "the packed layer is gone") from None

    def confirm(self, gang: KnownGang, here: End, there: End) -> ConnectionAnswer:
        """Whether the gang's user connects from here to there. Raises OSError."""
        owner = self.owner(gang.team)
        return ConnectionAnswer(confirmed=owner is None or uid_of(here, there) == owner.uid)

    def _of(self, gang: KnownGang) -> tuple[CheckpointRef, str, Owner | None]:
        if gang.resume is None:
            raise NotGiven("the attempt starts from nothing")
        return gang.resume, gang.team, self.owner(gang.team)


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except NotGiven as error:
        raise Refused(HTTPStatus.NOT_FOUND, str(error)) from None


class PeerServer(ThreadServer):
    """Answers by `answers` from `start` to `close`. Bound once made, which may raise OSError."""

    answers: PeerAnswers

    def __init__(self, address: str, port: int, tls: PeerTls | None = None) -> None:
        super().__init__((address, port), _Handler, name="peer-copies", close_within_s=0.2)
        self._tls = tls
        self._lock = threading.Lock()
        self._refused = 0
        self._logged_s: float | None = None

    def get_request(self) -> tuple[socket.socket, object]:
        """A new connection; with TLS its thread shakes hands when it first reads."""
        plain, client = super().get_request()
        if self._tls is None:
            return plain, client
        wrap = self._tls.server.wrap_socket
        return wrap(plain, server_side=True, do_handshake_on_connect=False), client

    def note_refusal(self, client: str, status: HTTPStatus, reason: str) -> None:
        """A line in the log, but not for each one of many."""
        with self._lock:
            self._refused += 1
            now_s = time.monotonic()
            if self._logged_s is not None and now_s < self._logged_s + _REFUSALS_LOGGED_S:
                return
            self._logged_s, refused, self._refused = now_s, self._refused, 0
        log.warning("peer.refused", client=client, status=int(status), reason=reason, count=refused)


class _Handler(BaseHTTPRequestHandler):
    server: PeerServer
    timeout = _SEND_TIMEOUT_S

    def do_GET(self) -> None:
        self.server.arrived(self.connection)
        try:
            request, path = self._asked()
            answers = self.server.answers
            scheme, _, given = self.headers.get("Authorization", "").partition(" ")
            gang = answers.admit(request, given if scheme == SCHEME else "")
            shown = proof(answers.secret.value(), request)
            if path.re is _CONNECTIONS:
                here, there = (path[3], int(path[4])), (path[5], int(path[6]))
                self._send(shown, answers.confirm(gang, here, there).encode())
            elif path.re is _LAYERS:
                self._send_rest(shown, answers.layer_of(gang, path[3]), int(path[4]))
            elif path[3] is None:
                self._send(shown, answers.held(gang).encode())
            else:
                with answers.opened(gang, path[3]) as file:
                    self._send(shown, file)
        except Refused as error:
            self._refuse(error.status, str(error))
        except StoreError as error:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, f"the store: {error}")

    def _asked(self) -> tuple[PeerRequest, re.Match[str]]:
        kinds = (_COPIES, _LAYERS, _CONNECTIONS)
        path = next(filter(None, (kind.fullmatch(self.path) for kind in kinds)), None)
        nonce = self.headers.get(NONCE_HEADER, "")
        if path is None or _NONCE.fullmatch(nonce) is None:
            raise Refused(HTTPStatus.NOT_FOUND, "asked for what there is not")
        client = self.headers.get(NODE_HEADER, "")
        server = self.server.answers.node_id
        return PeerRequest(path[1], int(path[2]), client, server, self.path, nonce), path

    def _send(self, shown: str, content: bytes | BinaryIO) -> None:
        if isinstance(content, bytes):
            size_bytes = len(content)
        else:
            size_bytes = content.seek(0, 2)
            content.seek(0)
        self._begin(HTTPStatus.OK, size_bytes, ((PROOF_HEADER, shown),))
        if isinstance(content, bytes):
            self.wfile.write(content)
        elif size_bytes:
            self.connection.sendfile(content, count=size_bytes)

    def _send_rest(self, shown: str, file: BinaryIO | None, at: int) -> None:
        """The bytes that a file has now, from `at` on; none: it has no more yet."""
        with contextlib.ExitStack() as opened:
            size_bytes = 0
            if file is not None:
                opened.enter_context(file)
                size_bytes = max(0, file.seek(0, 2) - at)
            self._begin(HTTPStatus.OK, size_bytes, ((PROOF_HEADER, shown),))
            if file is not None and size_bytes:
                self.connection.sendfile(file, at, size_bytes)

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        self.server.note_refusal(self.client_address[0], status, reason)
        self._begin(status, 0)

    def _begin(
        self, status: HTTPStatus, size_bytes: int, more: tuple[tuple[str, str], ...] = ()
    ) -> None:
        self.send_response_only(status)
        for header, value in (("Content-Length", str(size_bytes)), *more):
            self.send_header(header, value)
        self.send_header("Connection", "close")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Refusals are logged by the server; what was given by who asked for it."""
