"""The stream of changes: jobs, nodes, alerts and the queue, each encoded once for all viewers.

One task per gateway serves all streams, and runs only while there are any.

1. Every `TICK_S`, collect the subjects of new records: their jobs have changed.
2. Make one view, compare nodes and alerts with those before, and encode what changed. A job has at
   most one row a second for its progress, all jobs together, and one for everything else.
3. Viewers who see the same teams share one piece. A group keeps its newest pieces, so a viewer that
   reconnects continues. One that is further behind gets `snapshot`: it must read its lists again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from gangline_alerts.core.model import Alert
from gangline_bus.ports import Record
from gangline_gateway import alerts_state, present, sse
from gangline_gateway.followed import NoStateError
from gangline_gateway.gpu_map import first_ranks, map_node
from gangline_gateway.live_view import LiveView
from gangline_gateway.tail import Behind, Tail
from gangline_schemas.catalog import Topic

Kind = Literal["job", "node", "queue", "alert"]
TICK_S = 0.25
EACH_S = 1.0
LINGER_S = 30.0
"""A group without viewers stays so long: one that reloads its page continues where it was."""
BEAT_S = 10.0
KEPT = 32
"""Pieces of a group: those of 8 seconds if there is one in each tick."""
_TOPICS = (
    Topic.REQUESTS, Topic.QUOTA, Topic.SCHEDULING, Topic.FAULTS, Topic.CHECKPOINTS, Topic.WORKERS,
    Topic.PROGRESS, Topic.ALERTS,
)  # fmt: skip
_BATCH = 2000


@dataclass(frozen=True, slots=True)
class _News:
    """One event. `text` makes it for viewers who see these teams; None: not for them."""

    kind: Kind
    text: Callable[[frozenset[str] | None], str | None]


_Rows = dict[frozenset[str] | None, list[tuple[Kind, str]]]
"""Encoded events, by what their viewers see."""


@dataclass
class _Group:
    """Viewers who see the same teams and want the same kinds of events."""

    visible: frozenset[str] | None
    kinds: frozenset[Kind]
    since: int
    """Pieces after this number are here, or there were none."""
    viewers: int = 0
    left_s: float = 0.0
    pieces: deque[tuple[int, bytes]] = field(default_factory=deque)
    pulse: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, number: int, piece: bytes) -> None:
        """Keep a piece, and wake the viewers."""
        self.pieces.append((number, piece))
        if len(self.pieces) > KEPT:
            self.since = self.pieces.popleft()[0]
        self.wake()

    def wake(self) -> None:
        """Let the viewers look again."""
        self.pulse.set()
        self.pulse = asyncio.Event()


class Changes:
    """Belongs to one event loop."""

    def __init__(
        self,
        tail: Tail,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        *,
        tick_s: float = TICK_S,
    ) -> None:
        self._tail, self._clock, self._tick_s = tail, clock, tick_s
        self._groups: dict[tuple[frozenset[str] | None, frozenset[Kind]], _Group] = {}
        self._task: asyncio.Task[None] | None = None
        self._boot = secrets.token_hex(4)
        self._number = 0
        # Not the threads of `to_thread`: readers that wait for ClickHouse may hold all of these.
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="changes")

    async def follow(
        self, visible: frozenset[str] | None, kinds: frozenset[Kind], last_id: str | None
    ) -> AsyncGenerator[str | bytes, None]:
        """Events without end: `snapshot` at first, unless `last_id` is one of the last ones."""
        group, task = self._join(visible, kinds)
        try:
            at = self._resumed(last_id, group)
            while True:
                pulse = group.pulse
                if task.done():
                    task.result()
                if at is None or at < group.since:
                    at = group.pieces[-1][0] if group.pieces else self._number
                    yield sse.event("snapshot", {"at": self._clock().isoformat()}, self._id(at))
                for number, piece in [*group.pieces]:
                    if number > at:
                        at = number
                        yield piece
                if pulse is not group.pulse:
                    continue
                try:
                    await asyncio.wait_for(pulse.wait(), BEAT_S)
                except TimeoutError:
                    yield sse.COMMENT
        finally:
            self._leave(group)

    def _id(self, number: int) -> str:
        return f"{self._boot}.{number}"

    def _resumed(self, last_id: str | None, group: _Group) -> int | None:
        boot, _, number = (last_id or "").partition(".")
        if boot != self._boot or not (number.isascii() and number.isdigit() and len(number) < 16):
            return None
        return int(number) if group.since <= int(number) <= self._number else None

    def _join(
        self, visible: frozenset[str] | None, kinds: frozenset[Kind]
    ) -> tuple[_Group, asyncio.Task[None]]:
        group = self._groups.get((visible, kinds))
        if group is None:
            self._number += 1  # what is collected now is not for this group: it cannot resume
            group = self._groups[visible, kinds] = _Group(visible, kinds, self._number)
        group.viewers += 1
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(
                self._run(_Collector(self._tail, self._clock))
            )
            self._task.add_done_callback(lambda _: self._reload())
        return group, self._task

    def _leave(self, group: _Group) -> None:
        group.viewers -= 1
        group.left_s = asyncio.get_running_loop().time()

    def _forget(self, now_s: float) -> None:
        """The groups whose viewers do not come back."""
        for key, group in list(self._groups.items()):
            if not group.viewers and now_s - group.left_s > LINGER_S:
                del self._groups[key]

    async def _run(self, collector: _Collector) -> None:
        loop = asyncio.get_running_loop()
        while self._groups:
            await asyncio.sleep(self._tick_s)
            self._forget(loop.time())
            sights = {group.visible for group in self._groups.values()}
            try:
                rows = await loop.run_in_executor(
                    self._threads, collector.rows, loop.time(), sights
                )
            except Behind:
                collector = _Collector(self._tail, self._clock)
                self._reload()
            else:
                self._publish(rows)

    def _reload(self) -> None:
        """Changes are missing: every viewer must read its lists again."""
        self._number += 1
        for group in self._groups.values():
            group.pieces.clear()
            group.since = self._number
            group.wake()

    def _publish(self, rows: _Rows) -> None:
        if not any(rows.values()):
            return
        self._number += 1
        for group in self._groups.values():
            wanted = [text for kind, text in rows.get(group.visible, ()) if kind in group.kinds]
            if wanted:
                wanted[-1] = f"id: {self._id(self._number)}\n{wanted[-1]}"
                group.add(self._number, "".join(wanted).encode())


class _Collector:
    """Finds what changed since it was made or last asked."""

    def __init__(self, tail: Tail, clock: Callable[[], datetime]) -> None:
        self._tail, self._clock = tail, clock
        places = [place for topic in _TOPICS for place in tail.places(topic)]
        self._at = tail.ends(places)
        self._progress = tail.names.name(Topic.PROGRESS)
        self._alerts_topic = tail.names.name(Topic.ALERTS)
        self._urgent: set[str] = set()
        self._slow: set[str] = set()
        self._sent_s: dict[str, float] = {}
        self._slow_s = self._queue_s = -EACH_S
        self._queue_changed = False
        view = tail.view()
        self._nodes, self._pending = _nodes(view), _pending(view)
        self._alerts = self._alert_facts()

    def rows(self, now_s: float, sights: Iterable[frozenset[str] | None]) -> _Rows:
        """The events to send now, for each of these views. Raises Behind if records were missed."""
        news = self._news(now_s)
        made = {sight: [(one.kind, one.text(sight)) for one in news] for sight in sights}
        return {sight: [(k, text) for k, text in made[sight] if text] for sight in made}

    def _news(self, now_s: float) -> list[_News]:
        decided, alerted = self._collect()
        due = self._due(now_s)
        found: list[_News] = []
        if due or decided or self._queue_changed:
            view = self._tail.view()
            found += self._job_news(view, due)
            if decided:
                found += self._node_news(view)
                self._note_queue(view, due)
            found += self._queue_news(view, now_s)
        if alerted:
            found += self._alert_news()
        return found

    def _collect(self) -> tuple[bool, bool]:
        """Whether decisions came, and whether alerts did."""
        decided = alerted = False
        while True:
            records, self._at = self._tail.read(self._at, _BATCH)
            for record in records:
                if record.topic == self._alerts_topic:
                    alerted = True
                elif record.topic == self._progress:
                    self._slow.add(_subject(record))
                else:
                    decided = True
                    self._urgent.add(_subject(record))
            if len(records) < _BATCH:
                return decided, alerted

    def _due(self, now_s: float) -> set[str]:
        """Subjects whose rows are sent now."""
        due = {one for one in self._urgent if now_s - self._sent_s.get(one, -EACH_S) >= EACH_S}
        self._urgent -= due
        self._sent_s = {one: at for one, at in self._sent_s.items() if now_s - at < EACH_S}
        self._sent_s |= dict.fromkeys(due, now_s)
        if now_s - self._slow_s >= EACH_S:
            self._slow_s = now_s
            due |= self._slow
            self._slow = set()
        self._slow -= due
        return due

    def _job_news(self, view: LiveView, due: Iterable[str]) -> Iterable[_News]:
        now = self._clock()
        for job_id in due:
            found = view.details(job_id)
            if found is not None:
                row = present.summary(found, now).model_dump_json()
                yield _of_team("job", found.job.team, f"event: job\ndata: {row}\n\n")

    def _node_news(self, view: LiveView) -> Iterable[_News]:
        before, self._nodes = self._nodes, _nodes(view)
        ranks = first_ranks(view)
        for node_id, facts in self._nodes.items():
            if _same(before.get(node_id), facts):
                continue
            node = view.node(node_id)
            if node is not None:
                yield _News(
                    "node",
                    lambda visible, node=node: (  # type: ignore[misc]
                        "event: node\ndata: "
                        f"{map_node(view, node, visible, ranks).model_dump_json()}\n\n"
                    ),
                )

    def _note_queue(self, view: LiveView, due: set[str]) -> None:
        pending = _pending(view)
        if pending.keys() != self._pending.keys() or not due.isdisjoint(pending):
            self._queue_changed = True
        self._pending = pending

    def _queue_news(self, view: LiveView, now_s: float) -> Iterable[_News]:
        if not self._queue_changed or now_s - self._queue_s < EACH_S:
            return
        self._queue_changed, self._queue_s = False, now_s
        text = sse.event("queue", {"pending_jobs": len(_pending(view))})
        yield _News("queue", lambda _: text)

    def _alert_facts(self) -> dict[int, Alert]:
        try:
            state = alerts_state.alerts_of(self._tail.alerts())
        except NoStateError:
            return {}
        both = (*state.alerts.values(), *state.resolved.values())
        return {one.text.number: one for one in both}

    def _alert_news(self) -> Iterable[_News]:
        before, self._alerts = self._alerts, self._alert_facts()
        for number, facts in self._alerts.items():
            if facts is not before.get(number):
                row = alerts_state.alert(facts)
                text = f"event: alert\ndata: {row.model_dump_json()}\n\n"
                yield _of_team("alert", row.team, text)


def _subject(record: Record) -> str:
    for name, value in record.headers:
        if name == "ce_subject" and value is not None:
            return value.decode(errors="replace")
    return ""


def _of_team(kind: Kind, team: str, text: str) -> _News:
    """For viewers of this team; "": for all."""
    return _News(
        kind, lambda visible: text if visible is None or not team or team in visible else None
    )


def _nodes(view: LiveView) -> dict[str, tuple[object, object]]:
    """The values behind each node's row. They are frozen: an equal object is an equal row."""
    return {
        node_id: (view.scheduled_node(node_id), view.notes.get(node_id)) for node_id in view.nodes
    }


def _same(before: tuple[object, object] | None, now: tuple[object, object]) -> bool:
    return before is not None and before[0] is now[0] and before[1] is now[1]


def _pending(view: LiveView) -> dict[str, None]:
    found: dict[str, None] = {}
    for state in view.scheduling.known:
        found |= state.pending | state.cpu_pending
    return found
