"""Viewers of live pages, and callers of REST; each waits for its answers as a person does."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field

import httpx

from gangline.errors import CliError
from gangline.local.client import Client
from gangline.sdk import connect

CALLS = (
    "/v1/training-jobs?limit=50", "/v1/nodes?limit=100", "/v1/queue?limit=50", "/v1/teams",
    "/v1/gpus", "/v1/runs?limit=20",
)  # fmt: skip
CALLERS = 4


@dataclass
class Readers:
    """`viewers` open streams and `calls` requests a second, until `stop`."""

    client: Client
    viewers: int
    calls: float
    waits_s: list[tuple[float, float]] = field(default_factory=list)
    """Of REST: when it was asked (monotonic), and the seconds to the answer."""
    failures: int = 0
    messages: int = 0

    def __post_init__(self) -> None:
        self._stopping = threading.Event()
        view = [threading.Thread(target=self._view, daemon=True) for _ in range(self.viewers)]
        call = [threading.Thread(target=self._call, daemon=True) for _ in range(CALLERS)]
        self._threads = [*view, *(call if self.calls else [])]

    def start(self) -> None:
        """All of them."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Streams end with the process."""
        self._stopping.set()

    def _view(self) -> None:
        while not self._stopping.is_set():
            try:
                with connect(self.client.url, self.client.token) as gateway:
                    for _ in gateway.changes(["job", "node", "alert"]):
                        self.messages += 1
                        if self._stopping.is_set():
                            return
            except (CliError, httpx.HTTPError):
                time.sleep(1.0)

    def _call(self) -> None:
        headers = {"Authorization": f"Bearer {self.client.token}", "Accept-Encoding": "gzip"}
        with httpx.Client(
            base_url=self.client.url, headers=headers, timeout=30, trust_env=False
        ) as http:
            while not self._stopping.wait(random.expovariate(self.calls / CALLERS)):
                began = time.monotonic()
                try:
                    ok = http.get(random.choice(CALLS)).is_success
                except httpx.HTTPError:
                    ok = False
                self.failures += not ok
                if ok:
                    self.waits_s.append((began, time.monotonic() - began))
