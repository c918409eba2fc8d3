"""The agent's decisions: one input in, the effects that follow out. No I/O, no clock, no random.

Life of a gang on this node
1. `gang.allocated` names this node and incarnation: Prepare, and OpenStore where rank 0 is.
2. Both done, no process of an older attempt and none on its GPUs left: Spawn each rank.
3. Ranks report steps and shards; shards are checked on the disk and uploaded, both announced.
4. They exit: reported with the reason that the agent knows, orderly exits after their uploads,
   and after their commit where the job will resume elsewhere: the next attempt starts from it.
5. `gang.released`, a higher attempt or a lost lease: what is left is killed, then CloseGang.
   Before, a gang that failed is killed at `gang.stopping`; its saves are still uploaded.
   If `gang.failed` named a hang, its ranks' stacks are taken first, for STACKS_WAIT_S at most.

Whether it takes gangs at all is said in membership.py.
"""

from __future__ import annotations

from gangline_bus.codec import Received
from gangline_bus.decision import Tick
from gangline_schemas.base import Event
from gangline_schemas.events.faults import (
    CheckpointRequested,
    FailureCause,
    GangFailed,
    NodeFailed,
)
from gangline_schemas.events.scheduling import (
    CheckpointIntervalChanged,
    GangAllocated,
    GangReleased,
    GangStopping,
    ReleaseReason,
    ResumePointChanged,
    StopReason,
)
from gangline_schemas.events.workers import ExitReason, NodeInfo, WorkerExited

from . import announce
from .core_state import CoreState, asked_again
from .membership import AgentLimits, Membership
from .model import (
    EXIT_CONFIG,
    MESSAGE_LIMIT,
    STACKS_WAIT_S,
    CloseGang,
    Effect,
    Gang,
    GangKey,
    HeartbeatAcked,
    Input,
    KillRank,
    Leave,
    Moment,
    NodeChecked,
    NoSoundCopy,
    Note,
    OpenStore,
    Phase,
    Prepare,
    Prepared,
    PrepareFailed,
    Publish,
    Rank,
    RankExited,
    RankKey,
    RankMessage,
    RankSpawned,
    SendControl,
    ShardChecked,
    Spawn,
    SpawnFailed,
    StacksTaken,
    StoreFailed,
    StoreOpened,
    TakeStacks,
    TerminateRank,
    Upload,
    Uploaded,
    UploadFailed,
)
from .rank_messages import on_message

_KILL_AGAIN_S = 1.0
_LAST_CALL_S, _LAST_CALL_SHARE = 5.0, 0.25  # before the end of a stop's time, whichever is less
_STOOD_STILL_S = 2.0  # between two Ticks: this process itself stood still
_JOBS_REMEMBERED = 10_000
_ENDED = {ReleaseReason.SUCCEEDED, ReleaseReason.FAILED, ReleaseReason.CANCELLED}
_COMMIT_WAIT_S = 30.0
_ORDERLY = {ExitReason.FINISHED, ExitReason.STOPPED}


class AgentCore:
    """The state machine of one agent process. `start` once, then `handle` each input in order.

    `node.incarnation` is that of the process; after a lost lease a counter is appended to it.
    """

    def __init__(self, node: NodeInfo, limits: AgentLimits) -> None:
        self._member = Membership(node, limits)
        self._gangs: dict[GangKey, Gang] = {}
        self._fences: dict[str, int] = {}  # by job: no attempt up to this one starts any more
        self._reports = 0
        self._ticked_s = 0.0

    # For the shell and the tests.

    @property
    def incarnation(self) -> str:
        """The incarnation that allocations must name now."""
        return self._node.incarnation

    @property
    def gangs(self) -> tuple[Gang, ...]:
        """All gangs with anything on this node, by key; to be read only."""
        if len(self._gangs) < 2:  # mostly; and this is asked several times for each input
            return tuple(self._gangs.values())
        return tuple(self._gangs[key] for key in sorted(self._gangs))

    @property
    def joined(self) -> bool:
        """Whether the node has offered its GPUs as this incarnation."""
        return self._member.joined

    @property
    def unfit_for(self) -> tuple[str, ...]:
        """Why the node does not join; () when it may."""
        return self._member.unfit_for

    @property
    def gone(self) -> bool:
        """Whether the agent is leaving and nothing is left to end or report."""
        return self._member.leaving is not None and not any(
            gang.alive or any(rank.held_exit for rank in gang.ranks.values())
            for gang in self._gangs.values()
        )

    @property
    def lease_ends_s(self) -> float:
        """When the lease ends unless another heartbeat is acknowledged (monotonic seconds)."""
        return self._member.lease_ends_s

    @property
    def state(self) -> CoreState:
        """All that it knows, to be written down at once: it shares what is in it."""
        return CoreState(self._member.standing, self.gangs, self._fences, self._reports)

    @property
    def _node(self) -> NodeInfo:
        return self._member.node

    @property
    def _busy(self) -> bool:
        return any(gang.alive for gang in self._gangs.values())

    def start(self, at: Moment) -> list[Effect]:
        """Join. No process of an earlier agent on this node may run any more.

        A node that is to be checked joins later: its first check was begun before.
        """
        self._ticked_s = at.mono_s
        return self._member.start(at)

    def go_on(self, state: CoreState) -> list[Effect]:
        """Instead of `start`: be the core that had this state; ask again what it waits for.

        If this agent has another release, its node announces it.
        """
        announced = self._member.go_on(state.standing)
        self._fences = state.fences
        self._gangs = {gang.key: gang for gang in state.gangs}
        self._reports = state.reports
        return [*announced, *asked_again(state)]

    def handle(self, item: Input, at: Moment) -> list[Effect]:
        """The effects of an input. Inputs that come twice or too late have none."""
        if isinstance(item, HeartbeatAcked):
            self._member.acked(item)
        out = self._check_lease(at)
        out += self._react(item, at)
        out += self._advance()
        return out

    def _react(  # noqa: C901, PLR0911, PLR0912 -- one case for each input
        self, item: Input, at: Moment
    ) -> list[Effect]:
        match item:
            case Received():
                return self._on_event(item.envelope.data, item.envelope.id, at)
            case Tick():
                return self._on_tick(at)
            case HeartbeatAcked():
                fresh = item.incarnation == self.incarnation
                return self._member.offer(at, busy=self._busy) if fresh else []
            case Prepared() | StoreOpened():
                return self._on_ready(item)
            case PrepareFailed():
                return self._launch_failed(
                    item.gang,
                    item.message,
                    user_fault=item.user_fault,
                    damaged_object=item.damaged_object,
                )
            case StoreFailed():
                return self._launch_failed(item.gang, item.message, user_fault=False)
            case RankSpawned():
                return self._on_spawned(item, at)
            case SpawnFailed():
                return self._on_spawn_failed(item)
            case RankExited():
                return self._on_exited(item, at)
            case NoSoundCopy():
                return self._on_no_copy(item)
            case RankMessage():
                return self._on_message(item, at)
            case ShardChecked():
                return self._on_checked(item)
            case Uploaded() | UploadFailed():
                return self._on_upload(item, at)
            case StacksTaken():
                return self._on_stacks(item, at)
            case NodeChecked():
                return self._member.checked(item, at, busy=self._busy)
            case Leave():
                return self._on_leave(item, at)

    # Events of the scheduler and the fault manager.

    def _on_event(  # noqa: PLR0911 -- one case for each event
        self, event: Event, event_id: str, at: Moment
    ) -> list[Effect]:
        match event:
            case GangAllocated():
                return self._on_allocated(event, at)
            case GangStopping():
                gang = self._gangs.get(GangKey(event.job_id, event.attempt))
                return self._on_stopping(gang, event, at) if gang else []
            case GangReleased():
                key = GangKey(event.job_id, event.attempt)
                return self._fence(key, at, final=event.reason in _ENDED)
            case CheckpointRequested():
                gang = self._gangs.get(GangKey(event.job_id, event.attempt))
                return self._request_checkpoint(gang, event_id) if gang else []
            case ResumePointChanged() | CheckpointIntervalChanged():
                return self._on_job_changed(event, at)
            case NodeFailed():
                return self._on_node_failed(event, at)
            case GangFailed(cause=FailureCause.HANG):
                gang = self._gangs.get(GangKey(event.job_id, event.attempt))
                return self._take_stacks(gang, at) if gang else []
            case _:
                return []

    def _on_allocated(self, event: GangAllocated, at: Moment) -> list[Effect]:
        if event.attempt <= self._fences.get(event.job_id, 0):
            return []
        key = GangKey(event.job_id, event.attempt)
        out = self._fence(GangKey(event.job_id, event.attempt - 1), at, final=False)
        mine = [
            node
            for node in event.nodes
            if node.node_id == self._node.node_id and node.incarnation == self._node.incarnation
        ]
        if not mine or key in self._gangs or self._member.leaving is not None or not self.joined:
            return out
        assignment = mine[0]
        ranks = {
            assignment.first_rank + local: Rank(RankKey(key, assignment.first_rank + local), local)
            for local in range(len(assignment.gpus))
        }
        self._gangs[key] = Gang(key, event, assignment, self._node.incarnation, ranks)
        return [*out, Prepare(key, event, assignment)]

    def _fence(self, key: GangKey, at: Moment, *, final: bool) -> list[Effect]:
        """End this attempt and all older ones of the job, here and for ever."""
        self._fences[key.job_id] = max(key.attempt, self._fences.pop(key.job_id, 0))
        if len(self._fences) > _JOBS_REMEMBERED:
            del self._fences[next(iter(self._fences))]
        out: list[Effect] = []
        for gang in self.gangs:
            if gang.key.job_id == key.job_id and gang.key.attempt <= key.attempt:
                gang.final = gang.final or final
                out += self._end(gang, ExitReason.FENCED, at)
        return out

    def _end(self, gang: Gang, reason: ExitReason, at: Moment) -> list[Effect]:
        """Kill what is left of a gang that is over. Its lease waits for no stacks."""
        if reason is ExitReason.LEASE_LOST:
            gang.stacks_by_s = None
        if not gang.over:
            gang.over = True
            for rank in gang.ranks.values():
                if rank.alive:
                    rank.ending = reason
        return self._kill_rest(gang, at)

    def _kill_rest(self, gang: Gang, at: Moment) -> list[Effect]:
        """Kill those ranks that were not killed yet, but not while their stacks are taken."""
        out: list[Effect] = []
        if not gang.stacks_awaited(at.mono_s):
            for rank in gang.ranks.values():
                if rank.alive and rank.killed_at_s is None:
                    out += self._kill(rank, at)
        return out

    def _kill(self, rank: Rank, at: Moment) -> list[Effect]:
        rank.killed_at_s = at.mono_s
        return [KillRank(rank.key)] if rank.phase is Phase.RUNNING else []

    def _on_stopping(self, gang: Gang, event: GangStopping, at: Moment) -> list[Effect]:
        if event.reason is StopReason.FAILED:
            return [*self._stop(gang, event.reason.value, 0.0, at), *self._kill_rest(gang, at)]
        left_s = (event.deadline - at.utc).total_seconds()
        return self._stop(gang, event.reason.value, left_s, at)

    def _stop(self, gang: Gang, reason: str, left_s: float, at: Moment) -> list[Effect]:
        """Ask all ranks to save and exit; they are killed when `left_s` seconds have passed.

        SIGTERM comes at once where no rank asks, else shortly before (`_LAST_CALL_S`).
        """
        if gang.over:
            return []
        # Bounded by the spec: the scheduler's clock may be off.
        left_s = min(max(left_s, 0.0), gang.allocation.spec.stop_grace_seconds)
        by_s = at.mono_s + left_s
        if gang.stop_by_s is None or by_s < gang.stop_by_s:
            gang.stop_by_s = by_s
            gang.terminate_at_s = by_s - min(_LAST_CALL_S, left_s * _LAST_CALL_SHARE)
        if gang.stop == reason:
            return []
        gang.stop = reason
        out: list[Effect] = []
        for rank in gang.ranks.values():
            if rank.phase is Phase.WAITING:
                rank.phase = Phase.GONE
                exited = announce.exit_of(self._node, gang, rank, ExitReason.STOPPED)
                out += self._report_exit(
                    rank, exited.model_copy(update={"message": "it was stopped before it started"})
                )
            elif rank.alive:
                rank.ending = rank.ending or ExitReason.STOPPED
                if rank.connected:
                    out.append(SendControl(rank.key, gang.control))
        return out + self._terminate(gang, at)

    @staticmethod
    def _terminate(gang: Gang, at: Moment) -> list[Effect]:
        """SIGTERM, once a rank, unless the ranks handle the stop and still have time for that."""
        due_s = gang.terminate_at_s
        if due_s is None or gang.over or (gang.handles_stop and at.mono_s < due_s):
            return []
        out: list[Effect] = []
        for rank in gang.ranks.values():
            if rank.phase is Phase.RUNNING and not rank.terminated:
                rank.terminated = True
                out.append(TerminateRank(rank.key, rank.stopper))
        return out

    def _request_checkpoint(self, gang: Gang, event_id: str) -> list[Effect]:
        if event_id in gang.requests_seen or gang.over:
            return []
        gang.requests_seen.add(event_id)
        gang.checkpoint_requests += 1
        return gang.send_control()

    def _on_job_changed(
        self, event: ResumePointChanged | CheckpointIntervalChanged, at: Moment
    ) -> list[Effect]:
        out: list[Effect] = []
        for gang in self.gangs:
            if gang.key.job_id == event.job_id:
                out += gang.send_control() if gang.follow(event) else []
                out += self._report_held(gang, at)
        return out

    def _take_stacks(self, gang: Gang, at: Moment) -> list[Effect]:
        """Once, of the ranks that nothing has killed yet."""
        pids = {
            rank.key: rank.pid
            for rank in gang.ranks.values()
            if rank.phase is Phase.RUNNING and rank.killed_at_s is None
        }
        if gang.hung or not pids:
            return []
        gang.hung = True
        gang.stacks_by_s = at.mono_s + STACKS_WAIT_S
        return [TakeStacks(gang.key, pids)]

    def _on_stacks(self, item: StacksTaken, at: Moment) -> list[Effect]:
        """Published also when they come too late for their gang."""
        out: list[Effect] = []
        for found in item.found:
            _, rank = self._find(found.rank)
            last_step = rank.step if rank is not None else None
            out.append(announce.stacks(self._node, item.gang, found, last_step))
        gang = self._gangs.get(item.gang)
        if gang is not None:
            gang.stacks_by_s = None
            if gang.over:
                out += self._kill_rest(gang, at)
        return out

    # Getting ready and starting.

    def _on_ready(self, item: Prepared | StoreOpened) -> list[Effect]:
        gang = self._gangs.get(item.gang)
        if gang is None:
            return [CloseGang(item.gang, final=False)]
        if isinstance(item, Prepared):
            gang.prepared = True
            if gang.hosts_store and not gang.over and not gang.store_open:
                rendezvous = gang.allocation.rendezvous
                return [OpenStore(gang.key, rendezvous.address, rendezvous.port)]
        else:
            gang.store_open = True
        return []

    def _launch_failed(
        self, key: GangKey, message: str, *, user_fault: bool, damaged_object: str | None = None
    ) -> list[Effect]:
        gang = self._gangs.get(key)
        if gang is None:
            return [CloseGang(key, final=False)]
        if gang.over:
            return []
        gang.failed = True
        out: list[Effect] = []
        for rank in gang.ranks.values():
            if rank.phase is Phase.WAITING:
                code = EXIT_CONFIG if user_fault else None
                out += self._never_ran(gang, rank, message, code, damaged_object)
        return out

    def _never_ran(
        self,
        gang: Gang,
        rank: Rank,
        message: str,
        exit_code: int | None,
        damaged_object: str | None = None,
    ) -> list[Effect]:
        rank.phase = Phase.GONE
        reason = rank.ending or ExitReason.LAUNCH_FAILED
        event = announce.exit_of(self._node, gang, rank, reason)
        return self._report_exit(
            rank,
            event.model_copy(
                update={
                    "exit_code": exit_code,
                    "message": message[:MESSAGE_LIMIT],
                    "damaged_object": damaged_object,
                }
            ),
        )

    def _may_spawn(self, gang: Gang) -> bool:
        if gang.over or gang.failed or gang.stop is not None or not gang.prepared:
            return False
        if gang.hosts_store and not gang.store_open:
            return False
        return not any(
            other.alive and (other.key.job_id == gang.key.job_id or other.gpus & gang.gpus)
            for other in self._gangs.values()
            if other is not gang
        )

    def _on_spawned(self, item: RankSpawned, at: Moment) -> list[Effect]:
        gang, rank = self._find(item.rank)
        if gang is None or rank is None or rank.phase is not Phase.STARTING:
            return []
        rank.phase = Phase.RUNNING
        rank.pid = item.pid
        out: list[Effect] = [announce.started(self._node, gang, rank)]
        if rank.killed_at_s is not None:
            out += self._kill(rank, at)
        else:
            out += self._terminate(gang, at)
        return out

    def _on_spawn_failed(self, item: SpawnFailed) -> list[Effect]:
        gang, rank = self._find(item.rank)
        if gang is None or rank is None or rank.phase is not Phase.STARTING:
            return []
        gang.failed = True
        return self._never_ran(gang, rank, item.message, None)

    # Messages and ends of ranks.

    def _on_message(self, item: RankMessage, at: Moment) -> list[Effect]:
        gang, rank = self._find(item.rank)
        if gang is None or rank is None or gang.over or not rank.alive:
            return []
        self._reports += 1
        return on_message(self._node, gang, rank, item, at, self._reports)

    def _on_no_copy(self, item: NoSoundCopy) -> list[Effect]:
        _, rank = self._find(item.rank)
        if rank is not None:
            rank.damaged_object = item.key
        return []

    def _on_checked(self, item: ShardChecked) -> list[Effect]:
        gang, rank = self._find(item.rank)
        step = item.ready.step
        if gang is None or rank is None or gang.over or step not in rank.uploads:
            return []
        out: list[Effect] = []
        if gang.note_on_disk(rank, step):
            out.append(announce.saved(self._node, gang, step))
        return [*out, Upload(rank.key, item.ready)]

    def _on_upload(self, item: Uploaded | UploadFailed, at: Moment) -> list[Effect]:
        gang, rank = self._find(item.rank)
        if gang is None or rank is None:
            return []
        out: list[Effect] = []
        if isinstance(item, Uploaded):
            step = item.written.step
            if not gang.over and step in rank.uploads:
                identity = (*announce.identity(gang, rank), step)
                out.append(Publish(gang.key.job_id, item.written, identity))
                rank.saved = max(step, rank.saved or 0)
        else:
            step = item.step
            if not gang.over:
                out.append(announce.lost(self._node, gang, rank, step, item.message))
            out.append(Note("upload.failed", gang.key, f"step {step}: {item.message}"))
        behind = gang.behind
        rank.uploads.pop(step, None)
        out += gang.send_control() if gang.behind != behind else []
        return out + self._report_held(gang, at)

    def _on_exited(self, item: RankExited, at: Moment) -> list[Effect]:
        gang, rank = self._find(item.rank)
        if gang is None or rank is None or not rank.alive:
            return []
        rank.phase = Phase.GONE
        rank.connected = False
        reason = rank.ending or ExitReason.FAILED
        if item.code == 0:  # also when it was to be killed; one that was stopped has not finished
            reason = ExitReason.STOPPED if gang.stop is not None else ExitReason.FINISHED
        event = announce.exit_of(self._node, gang, rank, reason).model_copy(
            update={
                "exit_code": item.code,
                "signal": item.signal,
                "out_of_memory": item.out_of_memory and reason is ExitReason.FAILED,
                "message": item.last_words[-MESSAGE_LIMIT:],
                "damaged_object": rank.damaged_object if reason is ExitReason.FAILED else None,
            }
        )
        if reason not in _ORDERLY or gang.over:
            return self._report_exit(rank, event)
        rank.held_exit, rank.held_until_s = event, at.mono_s + _COMMIT_WAIT_S
        return self._report_held(gang, at)

    def _report_held(self, gang: Gang, at: Moment) -> list[Effect]:
        out: list[Effect] = []
        for rank in gang.ranks.values():
            if rank.held_exit is not None and not gang.awaits_commit(rank, at.mono_s):
                out += self._report_exit(rank, rank.held_exit)
        return out

    @staticmethod
    def _report_exit(rank: Rank, event: WorkerExited) -> list[Effect]:
        rank.held_exit = None
        return [announce.exited(event)]

    # Time, lease, leaving.

    def _on_tick(self, at: Moment) -> list[Effect]:
        out: list[Effect] = []
        self._forgive_if_deaf(at)
        out += self._member.beat(self.gangs, at)
        for gang in self.gangs:
            late = gang.stop_by_s is not None and at.mono_s >= gang.stop_by_s
            out += self._terminate(gang, at)
            if late or gang.over:
                out += self._kill_rest(gang, at)
            out += self._report_held(gang, at)
            for rank in gang.ranks.values():
                killed = rank.killed_at_s
                if rank.alive and killed is not None and at.mono_s - killed >= _KILL_AGAIN_S:
                    out += self._kill(rank, at)
        return out

    def _forgive_if_deaf(self, at: Moment) -> None:
        """After this process stood still no rank is quiet: it was we who did not hear."""
        if at.mono_s - self._ticked_s >= _STOOD_STILL_S:
            for gang in self.gangs:
                for rank in gang.ranks.values():
                    rank.pace.forgive(at.mono_s)
        self._ticked_s = at.mono_s

    def _check_lease(self, at: Moment) -> list[Effect]:
        return self._without_lease(self._member.lose(at), at)

    def _on_node_failed(self, event: NodeFailed, at: Moment) -> list[Effect]:
        if event.reason != "forgotten" or event.node_id != self._member.node.node_id:
            return []
        return self._without_lease(self._member.forgotten(event.incarnation), at)

    def _without_lease(self, out: list[Effect], at: Moment) -> list[Effect]:
        """End all ranks, if the node has to join again."""
        if out:
            for gang in self.gangs:
                out += self._end(gang, ExitReason.LEASE_LOST, at)
        return out

    def _on_leave(self, item: Leave, at: Moment) -> list[Effect]:
        """A second one can only shorten the time that ranks have."""
        out = self._member.leave(item.reason)
        for gang in self.gangs:
            out += self._stop(gang, "drain", item.grace_s, at)
        return out

    def _advance(self) -> list[Effect]:
        """Start the gangs that may start now, close those that are over."""
        out: list[Effect] = []
        for gang in self.gangs:
            if gang.over and not gang.alive:
                for rank in gang.ranks.values():
                    if rank.held_exit is not None:
                        out += self._report_exit(rank, rank.held_exit)
                del self._gangs[gang.key]
                out.append(CloseGang(gang.key, gang.final))
            elif self._may_spawn(gang):
                for rank in gang.ranks.values():
                    if rank.phase is Phase.WAITING:
                        rank.phase = Phase.STARTING
                        out.append(Spawn(rank.key, rank.local_rank))
        return out

    def _find(self, key: RankKey) -> tuple[Gang | None, Rank | None]:
        gang = self._gangs.get(key.gang)
        return gang, gang.ranks.get(key.rank) if gang is not None else None
