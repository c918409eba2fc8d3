"""Observers of gangline.faults and gangline.checkpoints: logs, machines and store compared."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gangline_faults.core.policy.limits import FaultLimits
from gangline_schemas.base import Event
from gangline_schemas.checkpoint import CommitRecord
from gangline_schemas.events.checkpoints import (
    AttemptNoted,
    CheckpointAbandoned,
    CheckpointCommitted,
    CheckpointCorrupted,
    CheckpointDeleted,
)
from gangline_schemas.events.faults import (
    GangFailed,
    IncidentClosed,
    JobProgressed,
    NodeFailed,
    NodeLeft,
    NodeRecovered,
    NodeWatched,
)
from gangline_schemas.events.workers import CheckpointShardWritten
from gangline_storage.digest import digest_bytes
from gangline_worker.agent.decide.keys import GangKey
from gangsim.engine import Violation
from gangsim.parts import HEARTBEAT_S, TIMEOUT_S

if TYPE_CHECKING:
    from gangsim.world import World

CLOCK_SLACK_S = 12.0
StepKey = tuple[str, int, int]


@dataclass(slots=True)
class FaultsWatch:
    """No node is declared dead that may still act, or whose heartbeats only we miss."""

    world: World
    failed: dict[tuple[str, int], None] = field(default_factory=dict)
    live: dict[str, str] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    commits: dict[str, int] = field(default_factory=dict)
    closed: dict[tuple[str, int], None] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """One committed event, in the order of its log."""
        match event:
            case GangFailed():
                self._failed(event)
            case JobProgressed(job_id=job_id):
                self.commits[job_id] = self.commits.get(job_id, 0) + 1
            case IncidentClosed():
                self._closed(event)
            case NodeWatched(node_id=node_id, incarnation=incarnation):
                self.live[node_id] = incarnation
            case NodeRecovered(node_id=node_id, incarnation=incarnation):
                self.live[node_id] = incarnation
            case NodeFailed():
                if event.reason == "silent":
                    self._silent(event.node_id, event.incarnation)
                self.live.pop(event.node_id, None)
            case NodeLeft(node_id=node_id):
                self.live.pop(node_id, None)
            case _:
                pass

    def _failed(self, event: GangFailed) -> None:
        job_id = event.job_id
        if (job_id, event.attempt) in self.failed:
            raise Violation(f"{job_id}/{event.attempt} failed twice")
        self.failed[job_id, event.attempt] = None
        self.restarts[job_id] = self.restarts.get(job_id, 0) + (event.action == "restart")
        came_back = self.commits.get(job_id, 0) // FaultLimits().refill_commits
        if self.restarts[job_id] > self.world.jobs[job_id].restarts + came_back:
            raise Violation(f"{job_id} was restarted {self.restarts[job_id]} times")

    def _closed(self, event: IncidentClosed) -> None:
        failure = (event.job_id, event.attempt)
        if failure not in self.failed or failure in self.closed:
            raise Violation(f"{failure} is an incident without a failure, or was closed twice")
        self.closed[failure] = None
        if event.outcome == "recovered" and event.running_at is None:
            raise Violation(f"{failure} recovered before it ran")

    def _silent(self, node_id: str, incarnation: str) -> None:
        world = self.world
        heard_s = world.heard.get(incarnation, 0.0)
        silent_s = world.engine.now_s - heard_s
        if silent_s < TIMEOUT_S - CLOCK_SLACK_S:
            raise Violation(f"{incarnation} was heard {silent_s:.1f} s ago and was declared dead")
        since_s = world.mass_silence_since_s
        if since_s is not None and heard_s > since_s - 2 * HEARTBEAT_S and len(self.live) > 1:
            raise Violation(f"{node_id} was declared dead while all were silent")
        acting = world.machines.of(incarnation)
        alone = since_s is not None and len(self.live) == 1  # one silence looks like that of all
        if acting and not alone:
            raise Violation(f"{incarnation} was declared dead while {acting[0].key} runs on it")


@dataclass(slots=True)
class CheckpointsWatch:
    """Invariants 3 and 4, seen from the log and from the store's bytes."""

    world: World
    parts: dict[StepKey, dict[int, CheckpointShardWritten]] = field(default_factory=dict)
    committed: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    gone: dict[StepKey, str] = field(default_factory=dict)
    gone_at_s: dict[StepKey, float] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    count: int = 0

    def see(self, event: Event) -> None:
        """One committed event, in the order of its log."""
        match event:
            case CheckpointShardWritten():
                key = (event.job_id, event.attempt, event.step)
                self.parts.setdefault(key, {})[event.rank] = event
            case AttemptNoted(job_id=job_id, attempt=attempt):
                if attempt <= self.attempts.get(job_id, 0):
                    raise Violation(f"{job_id}: attempt {attempt} was noted late")
                self.attempts[job_id] = attempt
            case CheckpointCommitted():
                self._committed(event)
            case CheckpointDeleted(job_id=job_id, attempt=attempt, step=step):
                self._deleted(job_id, attempt, step)
            case CheckpointAbandoned(reason=reason) if "no longer on" in reason:
                raise Violation(f"{event.job_id}: {event.step} was given up: {reason}")
            case CheckpointCorrupted(job_id=job_id, attempt=attempt, step=step):
                self.gone[job_id, attempt, step] = "corrupted"
            case _:
                pass

    def knows(self, job_id: str, attempt: int, step: int) -> bool:
        """Whether this checkpoint was ever committed."""
        return (attempt, step) in self.committed.get(job_id, ())

    def _committed(self, event: CheckpointCommitted) -> None:
        point = event.checkpoint
        if point.attempt != self.attempts.get(event.job_id):
            raise Violation(f"{event.job_id}: attempt {point.attempt} is over and committed")
        known = self.committed.setdefault(event.job_id, [])
        if known and (point.attempt, point.step) <= known[-1]:
            raise Violation(f"{event.job_id}: {point.attempt}/{point.step} after {known[-1]}")
        known.append((point.attempt, point.step))
        self.count += 1
        training = self.world.trainings.get(GangKey(event.job_id, point.attempt))
        if training is None or point.world_size != training.world_size:
            raise Violation(f"{event.job_id}: step {point.step} is committed with other ranks")
        parts = self.parts.get((event.job_id, point.attempt, point.step), {})
        if sorted(parts) != list(range(point.world_size)):
            raise Violation(f"{event.job_id}: step {point.step} is committed with {sorted(parts)}")
        store = self.world.store
        if point.commit_key not in store.objects:
            raise Violation(f"{point.commit_key} is committed and not in the store")
        record = CommitRecord.decode(store.objects[point.commit_key])
        if (record.attempt, record.step) != (point.attempt, point.step):
            raise Violation(f"{point.commit_key} is of {record.attempt}/{record.step}")
        for digest in (*record.manifests, *record.shards):
            data = store.objects.get(digest.key)
            whole = data is not None and digest_bytes(data) == digest.xxh3
            if not whole and store.damaged.get(digest.key) != "flipped":
                raise Violation(f"{digest.key} is committed and not whole in the store")

    def leftovers(self) -> list[str]:
        """Keys in the store of parts that were reported and are of no checkpoint that counts.

        A damaged one stays while no newer healthy one replaces it: there is nothing better.
        """
        found = []
        for key, parts in self.parts.items():
            counts = self.knows(*key) and (key not in self.gone or self._is_all_there_is(key))
            for part in parts.values():
                names = (part.manifest.key, *(shard.key for shard in part.shards))
                found += [name for name in names if not counts and name in self.world.store.objects]
        return found

    def _is_all_there_is(self, key: tuple[str, int, int]) -> bool:
        return self.gone[key] == "corrupted" and not self._has_newer_healthy(*key)

    def _has_newer_healthy(self, job_id: str, attempt: int, step: int) -> bool:
        return any(
            known > (attempt, step) and (job_id, *known) not in self.gone
            for known in self.committed.get(job_id, ())
        )

    def _deleted(self, job_id: str, attempt: int, step: int) -> None:
        self.gone[job_id, attempt, step] = "deleted"
        self.gone_at_s[job_id, attempt, step] = self.world.engine.now_s
        if not self._has_newer_healthy(job_id, attempt, step):
            raise Violation(f"{job_id}: {attempt}/{step} was the newest healthy and was deleted")
