"""`python -m load.readers SETTINGS`: viewers of live pages, and callers of REST.

Each waits for its answers as a person does. They are a process of their own: 50 threads beside the
clock of the probes would be measured with them. At the order `end` it writes its account as JSON.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

from load.processes import END

CALLS = (
    "/v1/training-jobs?limit=50", "/v1/nodes?limit=100", "/v1/queue?limit=50", "/v1/teams",
    "/v1/gpus", "/v1/runs?limit=20",
)  # fmt: skip
CALLERS = 4
CHANGES = "/v1/changes"
EVENT_END = b"\n\n"


@dataclass(frozen=True)
class ReaderSettings:
    """`viewers` open streams and `calls` requests a second."""

    url: str
    token: str
    viewers: int
    calls: float


@dataclass
class ReaderAccount:
    """What they saw."""

    waits_s: list[tuple[float, float]] = field(default_factory=list)
    """Of REST: when it was asked (monotonic), and the seconds to the answer."""
    failures: int = 0
    messages: int = 0
    cpu_s: float = 0.0


class Readers:
    """All of them, until the order `end`."""

    def __init__(self, settings: ReaderSettings) -> None:
        self._settings = settings
        self._stopping = threading.Event()
        self.account = ReaderAccount()

    def run(self) -> ReaderAccount:
        """Until `end`. Streams end with the process."""
        settings = self._settings
        doings = [self._view] * settings.viewers + [self._call] * (CALLERS if settings.calls else 0)
        for doing in doings:
            threading.Thread(target=doing, daemon=True).start()
        for line in sys.stdin:
            if line.strip() == END:
                break
        self._stopping.set()
        self.account.cpu_s = time.process_time()
        return self.account

    def _view(self) -> None:
        """One stream of changes. They are counted, not read: viewers have machines of their own."""
        kinds: dict[str, Any] = {"follow": "true", "kind": ["job", "node", "alert"]}
        with self._client() as http:
            while not self._stopping.is_set():
                try:
                    self._count(http, kinds)
                except httpx.HTTPError:
                    time.sleep(1.0)

    def _count(self, http: httpx.Client, kinds: dict[str, Any]) -> None:
        """The messages of one stream, until it ends."""
        with http.stream("GET", CHANGES, params=kinds) as answer:
            answer.raise_for_status()
            for part in answer.iter_bytes():
                self.account.messages += part.count(EVENT_END)
                if self._stopping.is_set():
                    return

    def _client(self) -> httpx.Client:
        """One for each thread's whole life: reading the system's certificates costs CPU."""
        headers = {"Authorization": f"Bearer {self._settings.token}", "Accept-Encoding": "gzip"}
        return httpx.Client(
            base_url=self._settings.url, headers=headers, timeout=30, trust_env=False
        )

    def _call(self) -> None:
        pause_s = CALLERS / self._settings.calls
        with self._client() as http:
            while not self._stopping.wait(random.expovariate(1 / pause_s)):
                began = time.monotonic()
                try:
                    ok = http.get(random.choice(CALLS)).is_success
                except httpx.HTTPError:
                    ok = False
                self.account.failures += not ok
                if ok:
                    self.account.waits_s.append((began, time.monotonic() - began))


def main() -> None:
    """One process of readers."""
    print(json.dumps(asdict(Readers(ReaderSettings(**json.loads(sys.argv[1]))).run())), flush=True)


if __name__ == "__main__":
    main()
