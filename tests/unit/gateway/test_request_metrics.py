"""The metrics of requests: strangers add no series."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
from starlette.responses import PlainTextResponse

from gangline_gateway.request_checks import Names, RequestChecks
from gangline_service import telemetry
from gangline_service.tokens import TokenBook, write_tokens


def test_methods_that_are_made_up_are_one_series(tmp_path: Path) -> None:
    write_tokens(tmp_path / "tokens.json", [])
    providers = telemetry.start("gateway", "a")
    checks = RequestChecks(
        PlainTextResponse("ok"), Names.of(8080), TokenBook.load(tmp_path / "tokens.json"),
        providers.meter("test"), providers.tracer("test"),
    )  # fmt: skip

    async def ask() -> None:
        transport = httpx.ASGITransport(checks)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as one:
            for method in ("GET", "BREW", "WHEN"):
                assert (await one.request(method, "/v1/jobs")).status_code == 401

    asyncio.run(ask())
    lines = providers.exposition()[0].decode().splitlines()
    counts = [
        line for line in lines if line.startswith("gangline_gateway_request_duration_seconds_count")
    ]
    assert [(line.split('"')[1], line.rpartition(" ")[2]) for line in counts] == [
        ("GET", "1.0"), ("(other)", "2.0"),
    ]  # fmt: skip
