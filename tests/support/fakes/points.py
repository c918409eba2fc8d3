"""A gateway that has points of runs, as exports read them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import pyarrow as pa
from pyarrow import parquet

from gangline.errors import CliError
from gangline.exchange.export import ExportedRun
from gangline.exchange.records import Point
from gangline.sdk import Gangline

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def exported(run_id: str, **more: Any) -> ExportedRun:
    row = {"run_id": run_id, "kind": "job", "name": "a", "started_at": NOW, "attempts": 1, **more}
    return ExportedRun(row, {"lr": "0.1"}, {})


class FakePoints:
    """A gateway's points; `fail_after` pages the platform is away."""

    def __init__(self, *pages: list[Point], fail_after: int | None = None) -> None:
        self.pages = pages
        self.fail_after = fail_after
        self.asked: list[dict[str, Any]] = []

    def points(self, run_ids: Sequence[str], **asked: Any) -> Iterator[bytes]:
        self.asked.append(asked)
        for number, page in enumerate(self.pages):
            if number == self.fail_after:
                raise CliError("nothing answers")
            rows = [
                {"run_id": run_ids[0], "attempt": 1, "time_ms": p.time_ms, "name": p.name,
                 "step": p.step, "value": p.value}
                for p in page
                if asked.get("first") is None or p.step >= asked["first"]
            ]  # fmt: skip
            if asked.get("form") == "parquet":
                out = io.BytesIO()
                parquet.write_table(pa.Table.from_pylist(rows), out)
                yield out.getvalue()
            else:
                yield "\n".join(json.dumps(row) for row in rows).encode()


def client(points: FakePoints) -> Gangline:
    return cast("Gangline", points)


def losses(first: int, last: int, late_ms: int = 0) -> list[Point]:
    return [Point("loss", n, 1_000 * n + late_ms, 1 / (1 + n)) for n in range(first, last)]
