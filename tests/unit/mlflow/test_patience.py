"""A start of MLflow's server while the bus is away or slow: it waits, and does not end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

sa = pytest.importorskip("sqlalchemy")
pytest.importorskip("mlflow")

from gangline_bus.memory import Broker  # noqa: E402 - these need sqlalchemy
from gangline_bus.ports import BusDenied  # noqa: E402
from gangline_bus.topics import TopicNames  # noqa: E402
from gangline_mlflow.artifacts import Artifacts  # noqa: E402
from gangline_mlflow.history import Histories  # noqa: E402
from gangline_mlflow.job_runs import JobRuns  # noqa: E402
from gangline_mlflow.job_table import JobTable  # noqa: E402
from gangline_mlflow.latest import LatestTable  # noqa: E402
from gangline_mlflow.parts import Parts  # noqa: E402
from gangline_mlflow.points import Points  # noqa: E402
from gangline_mlflow.reported import ReportedMetrics  # noqa: E402

TABLES = (
    "CREATE TABLE runs (run_uuid VARCHAR(32) PRIMARY KEY, status VARCHAR(20))",
    "CREATE TABLE tags (key VARCHAR(250), value VARCHAR(8000), run_uuid VARCHAR(32))",
)
FOLLOWERS = ["jobs", "points", "reported"]


class Start:
    """One follower of the bus at its start. The broker answers from the third pause on."""

    def __init__(self, kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broker, self.pauses, self.beats, self.follows = Broker(), 0, 0, 0
        names, bus = TopicNames(""), self.broker.connect("mlflow")
        bus.create_topics(names.settings())
        parts = Parts(bus, names, cast("Histories", None), cast("Artifacts", None), self._beat)
        engine = sa.create_engine(f"sqlite:///{folder / 'test.db'}")
        with engine.begin() as connection:
            for statement in TABLES:
                connection.execute(sa.text(statement))
        latest, jobs = LatestTable(engine), JobTable(engine)
        store = SimpleNamespace(engine=engine)
        self.part: Any = {
            "jobs": lambda: JobRuns(parts, store, cast("Points", None)),
            "points": lambda: Points(parts, latest),
            "reported": lambda: ReportedMetrics(parts, latest, jobs),
        }[kind]()
        monkeypatch.setattr("time.sleep", self._pause)
        monkeypatch.setattr(self.part, "_follow", self._follow)
        self.broker.down = True

    def _beat(self) -> None:
        self.beats += 1

    def _pause(self, _seconds: float) -> None:
        self.pauses += 1
        self.broker.down = self.pauses < 3

    def _follow(self) -> None:
        self.follows += 1


@pytest.mark.parametrize("kind", FOLLOWERS)
def test_a_bus_that_does_not_answer_is_waited_for(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Start(kind, tmp_path, monkeypatch)
    start.part.start()
    assert (start.pauses, start.follows) == (3, 1)
    assert start.beats >= 4, "a process without beats is taken for one that hangs"


@pytest.mark.parametrize("kind", FOLLOWERS)
def test_a_bus_that_refuses_is_not_waited_for(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Start(kind, tmp_path, monkeypatch)

    def refuse() -> None:
        raise BusDenied("no right")

    monkeypatch.setattr(start.broker, "check_reachable", refuse)
    with pytest.raises(BusDenied):
        start.part.start()
    assert (start.pauses, start.follows) == (0, 0)
