"""A gateway over the bus in memory, with real deciders in a thread.

`GatewayHarness` serves the real application from a real HTTP server. Only history is a fake, and
only where a test asks for one: ClickHouse is the tracker's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from starlette.types import ASGIApp

from gangline_alerts.core.decide import AlertDecider
from gangline_alerts.core.policy.routes import Receivers, Route
from gangline_alerts.core.policy.rules import QueueWait, Rules
from gangline_alerts.core.policy.timing import Timing
from gangline_bus.codec import encode
from gangline_bus.decider import DeciderLoop
from gangline_bus.loop_settings import LoopSettings
from gangline_bus.memory import Broker, MemoryBus
from gangline_bus.topics import TopicNames, create_topics
from gangline_gateway.app import create_app
from gangline_gateway.app_context import AppContext
from gangline_gateway.audit import AuditLog
from gangline_gateway.changes import Changes
from gangline_gateway.dead_letters import DeadLetters
from gangline_gateway.follow import Followers
from gangline_gateway.history import RunFilter
from gangline_gateway.history_access import HistoryAccess, Queries
from gangline_gateway.mlflow_jobs import JobTokens
from gangline_gateway.node_tokens import NodeTokens
from gangline_gateway.publish import Publisher
from gangline_gateway.reports.facts import Facts, Period
from gangline_gateway.request_checks import Names, RequestChecks
from gangline_gateway.run_filter import RunQuery
from gangline_gateway.run_points import PointPage
from gangline_gateway.scheduler_questions import SchedulerQuestions
from gangline_gateway.sse import Streams
from gangline_gateway.state_history import StateHistory
from gangline_gateway.tail import Tail
from gangline_gateway.user_limits import RequestLimits
from gangline_quota.core.decide import Quota
from gangline_registry.core.decide import RegistryDecider
from gangline_registry.service.executor import Executor, share_of
from gangline_scheduler.core.decide import Scheduler
from gangline_schemas.api.access import AuditPage
from gangline_schemas.api.incidents import Totals
from gangline_schemas.api.logs import LogPage
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic, topic_of
from gangline_schemas.data_use import ApprovalRule
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.admin import TeamConfigureRequested
from gangline_schemas.events.progress import progress_key
from gangline_schemas.events.steps import WorkerStep
from gangline_schemas.events.workers import NodeJoined
from gangline_schemas.team_limits import TeamConfig
from gangline_service.executor import ThreadExecutor
from gangline_service.http_server import HttpServer
from gangline_service.telemetry import start as start_telemetry
from gangline_service.tokens import Role, TokenBook, TokenEntry, write_tokens
from gangline_storage.local import LocalStore
from gangline_tracker.views.runs import EVERY_MS, Runs
from support.builders.gangs import node_info
from support.fakes.catalogue import Catalogue

DEADLINE_S = 120.0
ALERTS = AlertDecider(
    Rules(queue_wait=QueueWait(above_s=0.1)),
    Receivers((Route(to="ops"),)),
    Timing(settle_s=0.0, group_s=0.0),
)
"""Eager, and without anything that delivers."""
TOKENS = {"admin": "admin-token", "nlp": "nlp-token", "vision": "vision-token", "svc": "svc-token"}


class NoHistory:
    """ClickHouse before anything was ingested: every answer is empty."""

    def runs(self, wanted: RunFilter, *, cursor: str | None = None, **_: object) -> list[Any]:
        query = RunQuery(wanted.where, wanted.order_by)
        if cursor is not None:
            query.read(cursor)
        return []

    def run(self, *_: object) -> None:
        return None

    def some_runs(self, *_: object) -> list[Any]:
        return []

    def names(self, *_: object, **__: object) -> list[str]:
        return []

    def used(self, *_: object) -> dict[str, Any]:
        return {}

    def over_time(self, *_: object) -> list[Any]:
        return []

    def team_of(self, *_: object) -> None:
        return None

    def curves(self, *_: object, **__: object) -> list[Any]:
        return []

    def latest(self, *_: object) -> dict[str, Any]:
        return {}

    def logs(self, *_: object, cursor: str | None = None, **__: object) -> LogPage:
        return LogPage(lines=[], cursor=cursor)

    def checkpoints(self, *_: object) -> list[Any]:
        return []

    def positions(self, *_: object) -> dict[Any, int]:
        return {}

    def event_positions(self) -> dict[Any, int]:
        return {}

    def events(self, *_: object, **__: object) -> list[Any]:
        return []

    def steps_at(self, *_: object) -> dict[str, int]:
        return {}

    def facts(self, period: Period, **_: object) -> Facts:
        return Facts(period)

    def page(self, *_: object, **__: object) -> tuple[list[Any], str | None]:
        return [], None

    def totals(self, *_: object, **__: object) -> Totals:
        return Totals(
            incidents=0, recovered=0, recover_median_s=None, recover_p95_s=None, lost_gpu_s=0.0,
            by_class=[], by_node=[], by_job=[], by_shard=[],
        )  # fmt: skip

    def one(self, *_: object) -> None:
        return None

    def stacks(self, *_: object) -> list[Any]:
        return []

    def notices(self, *_: object) -> list[Any]:
        return []


class NoAudit:
    """An audit log without entries."""

    def page(self, *_: object, **__: object) -> AuditPage:
        return AuditPage(entries=[], cursor=None)


class NoPoints:
    """A history without points."""

    def page(self, *_: object) -> PointPage:
        return PointPage(b"", None)


def no_history() -> Queries:
    """Queries without answers."""
    empty: Any = NoHistory()
    points: Any = NoPoints()
    audit: Any = NoAudit()
    return Queries(empty, empty, empty, empty, empty, points, empty, audit)


class GatewayHarness:
    """The running parts, and what tests do with them."""

    def __init__(
        self, folder: Path, history: HistoryAccess | None = None, *, deciding: bool = True
    ) -> None:
        self.folder = folder
        self.broker = Broker(lambda: int(time.time() * 1000))
        self.names = TopicNames("t.")
        self.bus: MemoryBus = self.broker.connect("test")
        create_topics(self.bus, self.names)
        self.tail = Tail(self.broker.connect("gateway"), self.names)
        self.tokens_file = folder / "tokens.json"
        write_tokens(
            self.tokens_file,
            [
                TokenEntry.of(TOKENS["admin"], name="root", role=Role.ADMIN),
                TokenEntry.of(TOKENS["nlp"], name="ada", role=Role.MEMBER, teams=["nlp"]),
                TokenEntry.of(TOKENS["vision"], name="bob", role=Role.MEMBER, teams=["vision"]),
                TokenEntry.of(TOKENS["svc"], name="svc", role=Role.SERVICE),
            ],
        )
        self.context = AppContext(
            tail=self.tail,
            publisher=Publisher(self.broker.connect("gateway").writer(), self.names),
            history=history or HistoryAccess(no_history),
            followers=Followers(self.tail),
            streams=Streams(50),
            changes=Changes(self.tail),
            state_history=StateHistory(self.bus, self.names.places(self.bus, Topic.SCHEDULING)),
            store=LocalStore(folder / "store"),
            scheduler=SchedulerQuestions(self.tail, work_s=DEADLINE_S, wait_s=DEADLINE_S),
            answer_wait_s=DEADLINE_S if deciding else 0.05,
            dead_letters=DeadLetters(lambda: self.broker.connect("dead-letters"), self.names),
            node_tokens=NodeTokens(LocalStore(folder / "store")),
            nodes_file=folder / "nodes.toml",
        )
        self.catalogue = Catalogue()
        self.limits = RequestLimits(per_s=100_000, burst=100_000)
        self._telemetry = start_telemetry("gateway", "test")
        self.runs = Runs(0)
        self._runs_ms = 0
        self._stopping = threading.Event()
        self.failures: list[BaseException] = []
        self._deciders = threading.Thread(target=self._decide, name="deciders", daemon=True)
        self._deciding = deciding

    def app(self, port: int, console: ASGIApp | None = None) -> RequestChecks:
        """The application as it is served on this port; `console`: what answers at /console/."""
        return create_app(
            self.context,
            Names.of(port),
            TokenBook.load(self.tokens_file),
            self._telemetry.meter("test"),
            self._telemetry.tracer("test"),
            self.limits,
            console=console,
            job_tokens=JobTokens(LocalStore(self.folder / "store"), self.tail.job),
            audit=AuditLog(self.broker.connect("gateway").writer(), self.names),
        )

    def start(self) -> None:
        """Deciders and tail."""
        if self._deciding:
            self._deciders.start()
        self.tail.start()
        self.tail.ready.wait(DEADLINE_S)

    def end_deciders(self) -> None:
        """No more decisions; a decider's error fails the test."""
        self._stopping.set()
        if self._deciding:
            self._deciders.join(DEADLINE_S)
        assert self.failures == []

    def stop(self) -> None:
        """End both threads."""
        self.tail.close()
        self.end_deciders()

    def say(self, event: Event, subject: str, key: str | None = None) -> None:
        """Publish an event as another service does; of steps also what the live view says."""
        at = datetime.now(UTC)
        ce_id = f"{subject}-{time.monotonic_ns()}"
        envelope = Envelope(ce_id, "/test", at, subject, event)
        topic = self.names.name(topic_of(event.type))
        self.bus.writer().send(encode(envelope, topic=topic, key=key))
        if isinstance(event, WorkerStep):
            self._runs_ms += EVERY_MS
            self.runs.note(event, self._runs_ms)
            for progress in self.runs.due(self._runs_ms):
                key = progress_key(progress.team, progress.run_id)
                self.say(progress, progress.run_id, key)

    def configure(self, team: str, limit: int = 8) -> None:
        """Configure a team and wait until the gateway sees it."""
        config = TeamConfig(team=team, gpu_limit=limit)
        self.say(TeamConfigureRequested(config=config), team)
        self.wait(lambda: team in self.tail.view().quota.states()[0].teams)

    def join(self, node_id: str, gpus: int = 4) -> None:
        """A node joins; wait until the gateway sees it."""
        info = node_info(
            node_id, gpus, model="cpu", gpu_memory_gb=8, incarnation="i1",
            rendezvous_ports=(29500, 29501, 29502, 29503),
        )  # fmt: skip
        self.say(NodeJoined(node=info), node_id)
        self.wait(lambda: self.tail.view().node(node_id))

    def wait(self, condition: Callable[[], object]) -> None:
        """Until it holds, at most `DEADLINE_S`."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert self.failures == []
            assert time.monotonic() < deadline, "the condition did not come true in time"
            time.sleep(0.01)

    def _decide(self) -> None:
        try:
            executor = ThreadExecutor(Executor(self.catalogue, self.context.store), share_of)
            loops = [
                DeciderLoop(
                    self.broker.connect(decider.name),
                    decider,
                    lambda: datetime.now(UTC),
                    names=self.names,
                    settings=LoopSettings(tick_interval_s=0.1),
                    executor=executor if decider.name == "registry" else None,
                )
                for decider in (Quota(ApprovalRule.NAMED), Scheduler(), ALERTS, RegistryDecider())
            ]
            for loop in loops:
                loop.take_over()
            while not self._stopping.wait(0.005):
                for loop in loops:
                    loop.cycle(0.0)
        except BaseException as error:
            self.failures.append(error)


@contextmanager
def served(harness: GatewayHarness) -> Iterator[httpx.Client]:
    """The harness behind a real HTTP server; the client has no token."""
    harness.start()
    server = HttpServer("127.0.0.1", 0)
    server.start(harness.app(server.port))
    client = httpx.Client(
        base_url=f"http://127.0.0.1:{server.port}", timeout=DEADLINE_S * 2, trust_env=False
    )
    try:
        yield client
    finally:
        client.close()
        server.close()
        harness.stop()


def bearer(who: str) -> dict[str, str]:
    """The headers of one of `TOKENS`."""
    return {"Authorization": f"Bearer {TOKENS[who]}"}


def job(team: str = "nlp", gpus: int = 1, **fields: Any) -> dict[str, Any]:
    """The JSON of a small valid job."""
    return {
        "name": "train", "team": team, "command": ["true"], "resources": {"gpus": gpus}, **fields
    }  # fmt: skip
