"""HTTP requests of a seed: well formed ones, wrong ones, and bytes that are no HTTP at all."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Sequence
from typing import Any

WAIT_S = 0.2
Operation = tuple[str, str]
"""Method and path with its `{parameters}`."""

EXTREMES: tuple[Any, ...] = (
    0, -1, 1, 2**31, 2**53, 2**63, -(2**63), 10**400, 5e-324, 1e308, -0.0, True, None, "", "x",
    "\x00", "\u202e", "é" * 300, "NaN", "-Infinity", "../../etc/passwd", "a" * 5000, [], {}, [[]],
    {"": {}}, "' OR 1=1 --", "{{7*7}}", "2026-99-99T00:00:00Z",
)  # fmt: skip
WORDS = (
    "a", "train-0123456789", "nlp", "node-0", "1", "0", "-1", "99999999999999999999", "%00",
    "%2e%2e", "%ff", "A", "*", "null", "ü", "x" * 300, "follow", "true", "..", "",
)  # fmt: skip
NAMES = (
    "name", "team", "command", "resources", "gpus", "hyperparameters", "checkpoint", "priority",
    "limit", "cursor", "follow", "rank", "attempt", "tail", "state", "topic", "from", "to", "week",
    "run", "points", "since", "submitted_from", "drain", "gpu_limit", "approve", "snapshot",
    "cpus_per_gpu", "max_runtime_hours", "env", "dry_run",
)  # fmt: skip
LITERALS = (
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b'"\\ud800"',
    b"1" * 500,
    b"[" * 3000,
    b"1e999",
    b"'x'",
)


class FuzzedRequests:
    """Draws requests for one server."""

    def __init__(
        self, seed: int, host: str, operations: Sequence[Operation], tokens: Sequence[str]
    ) -> None:
        self._chance = random.Random(seed)
        self._host = host
        self._operations = list(operations)
        self._tokens = list(tokens)

    def draw(self) -> bytes:
        """The bytes of one request, or of what must look like one."""
        chance = self._chance
        method, path = chance.choice(self._operations)
        if chance.random() < 0.1:
            method = chance.choice(
                ["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "BREW", "get"]
            )
        body = self._body() if method in {"POST", "PUT"} or chance.random() < 0.1 else b""
        head = f"{method.upper()} {self._target(path)} HTTP/1.{chance.choice('11110')}\r\n".encode()
        request = head + self._headers(body) + b"\r\n" + body
        return self._damaged(request) if chance.random() < 0.25 else request

    def _target(self, path: str) -> str:
        chance = self._chance
        for name in ("job_id", "run_id", "node_id", "team", "attempt", "step", "epoch"):
            path = path.replace(f"{{{name}}}", chance.choice(WORDS))
        query = "&".join(
            f"{chance.choice(NAMES)}={chance.choice(WORDS)}"
            for _ in range(chance.choice([0, 0, 1, 3]))
        )
        target = f"{path}?{query}" if query else path
        return "".join(char if 32 < ord(char) < 127 else "%C3%BC" for char in target)

    def _headers(self, body: bytes) -> bytes:
        chance = self._chance
        lines = [b"Host: " + self._host.encode(), b"Connection: close"]
        if chance.random() < 0.9:
            lines.append(b"Authorization: Bearer " + chance.choice(self._tokens).encode())
        if body:
            lines.append(b"Content-Type: application/json")
            length = (
                len(body) if chance.random() < 0.9 else chance.choice([0, 1, 10**9, 10**30, -1])
            )
            lines.append(b"Content-Length: %d" % length)
        if chance.random() < 0.1:
            lines.append(chance.choice([
                b"Transfer-Encoding: chunked", b"Content-Length: 5", b"Expect: 100-continue",
                b"Idempotency-Key: \xff", b"Last-Event-ID: quota.0.99999999999999",
                b"Range: bytes=0-",
                b"traceparent: 00-" + b"f" * 32 + b"-0-01", b"Accept: \x01", b"Upgrade: websocket",
                b"X: " + b"y" * 40_000, b"Content-Encoding: gzip", b"Accept: text/event-stream",
            ]))  # fmt: skip
        return b"".join(line + b"\r\n" for line in lines)

    def _body(self) -> bytes:
        chance = self._chance
        if chance.random() < 0.1:
            return chance.randbytes(chance.choice([1, 50, 3000]))
        if chance.random() < 0.2:
            return b'{"name": "a", "team": "nlp", "run": "true", "hyperparameters": {"a": %s}}' % (
                chance.choice(LITERALS)
            )
        spec: dict[str, Any] = {
            "name": "fuzz", "team": "nlp", "command": ["true"], "resources": {"gpus": 1}
        }  # fmt: skip
        for _ in range(chance.choice([0, 1, 1, 2, 4])):
            place = chance.choice([spec, spec["resources"]]) if isinstance(
                spec.get("resources"), dict
            ) else spec  # fmt: skip
            place[chance.choice(NAMES)] = self._value(2)
        return json.dumps(spec).encode()

    def _value(self, depth: int) -> Any:
        chance = self._chance
        if depth and chance.random() < 0.2:
            return {chance.choice(NAMES): self._value(depth - 1) for _ in range(2)}
        if depth and chance.random() < 0.2:
            return [self._value(depth - 1)]
        return chance.choice(EXTREMES)

    def _damaged(self, request: bytes) -> bytes:
        chance = self._chance
        damage = bytearray(request)
        for _ in range(chance.choice([1, 3, 20])):
            at = chance.randrange(len(damage))
            kind = chance.random()
            if kind < 0.4:
                damage[at] = chance.randrange(256)
            elif kind < 0.7:
                del damage[at : at + chance.randrange(1, 20)]
            else:
                damage[at:at] = chance.choice([b"\r\n", b"\n", b"\x00", b":", b" ", b"\r\n\r\n"])
            if not damage:
                break
        return bytes(damage)


def status_of(port: int, request: bytes) -> int | None:
    """The status of the first answer to these bytes; None when the server hung up without one."""
    said = b""
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        try:
            connection.sendall(request)
            connection.settimeout(WAIT_S)
            while b"\r\n" not in said and len(said) < 65536:
                try:
                    part = connection.recv(4096)
                except TimeoutError:  # it waits for more
                    connection.shutdown(socket.SHUT_WR)
                    connection.settimeout(30)
                    continue
                if not part:
                    break
                said += part
        except OSError:
            pass
    words = said.split(b" ", 2)
    return int(words[1]) if len(words) > 1 and words[1][:3].isdigit() else None
