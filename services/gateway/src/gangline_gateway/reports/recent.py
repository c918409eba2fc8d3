"""A cache of reports for some seconds: many people read the same ones."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from datetime import datetime, timedelta
from typing import TypeVar

from pydantic import BaseModel

from gangline_gateway.recent import Recent

ReportT = TypeVar("ReportT", bound=BaseModel)
FOR = timedelta(seconds=10)
MOST = 64


class RecentReports:
    """Reports by the question and the teams that its caller sees. May be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: Recent[tuple[Hashable, ...], tuple[datetime, BaseModel]] = Recent(MOST)

    def find(self, kind: type[ReportT], asked: Hashable, now: datetime) -> ReportT | None:
        """The report of this kind, if it was made in the last `FOR`."""
        with self._lock:
            made, report = self._kept.get((kind, asked), (None, None))
        recent = made is not None and timedelta(0) <= now - made < FOR
        return report if recent and isinstance(report, kind) else None

    def keep(self, asked: Hashable, report: BaseModel, now: datetime) -> None:
        """Keep one that was made now; of too many, the oldest go."""
        with self._lock:
            self._kept.put((type(report), asked), (now, report))
