"""Join tokens are looked up in the store before it is known who sends them."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import httpx
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.trace import NoOpTracerProvider

from gangline_gateway.request_checks import JOINS_AT_ONCE, Names, RequestChecks
from gangline_service.tokens import TokenBook, write_tokens


class SlowStore:
    """Looks tokens up, and never finds one. It answers once it may."""

    def __init__(self) -> None:
        self.running = self.most = self.asked = 0
        self.may_answer, self.full = threading.Event(), threading.Event()
        self._lock = threading.Lock()

    def find(self, _: str) -> None:
        with self._lock:
            self.asked += 1
            self.running += 1
            self.most = max(self.most, self.running)
            if self.running == JOINS_AT_ONCE:
                self.full.set()
        self.may_answer.wait(60)
        with self._lock:
            self.running -= 1


def test_guessed_join_tokens_take_few_threads_of_a_slow_store(tmp_path: Path) -> None:
    write_tokens(tmp_path / "tokens.json", [])
    store = SlowStore()
    tokens: Any = store
    checks = RequestChecks(
        lambda *_: asyncio.sleep(0), Names.of(8080), TokenBook.load(tmp_path / "tokens.json"),
        NoOpMeterProvider().get_meter("t"), NoOpTracerProvider().get_tracer("t"),
        node_tokens=tokens,
    )  # fmt: skip

    async def guess_often() -> list[int]:
        transport = httpx.ASGITransport(checks)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost:8080"
        ) as client:
            headers = {"Authorization": "Bearer gl_node_guess"}
            tries = [
                client.post("/v1/nodes/join", headers=headers) for _ in range(2 * JOINS_AT_ONCE)
            ]
            asking = asyncio.gather(*tries)
            await asyncio.to_thread(store.full.wait, 60)
            for _ in range(20):  # further ones would be there too
                await asyncio.sleep(0.001)
            store.may_answer.set()
            return [answer.status_code for answer in await asking]

    assert asyncio.run(guess_often()) == [401] * (2 * JOINS_AT_ONCE)
    assert (store.asked, store.most) == (2 * JOINS_AT_ONCE, JOINS_AT_ONCE)
