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
from gangline_schemas.events.faults import CheckpointRequested, FailureCause, GangFailed, NodeFailed
from gangline_schemas.events.scheduling import (
    CheckpointIntervalChanged,
    GangAllocated,
    GangReleased,
    GangStopping,
    ReleaseReason,
    ResumePointChanged,
)
from gangline_schemas.events.workers import ExitReason, NodeInfo

from . import announce, exits, inputs, saves, stops
from .core_state import CoreState, awaited_effects
from .effects import CloseGang, Effect, OpenStore, Prepare, Spawn
from .gang import Gang, Phase, Rank
from .keys import GangKey, Moment, RankKey
from .membership import AgentLimits, Membership
from .rank_messages import on_message

_STOOD_STILL_S = 2.0  # between two Ticks: this process itself stood still
_HELD_S = 300.0
"""So long a killed process may still end; one that waits for a broken device never does."""
_JOBS_REMEMBERED = 10_000
_ENDED = {ReleaseReason.SUCCEEDED, ReleaseReason.FAILED, ReleaseReason.CANCELLED}


class AgentCore:
    """The state machine of one agent process. `start` once, then `handle` each input in order.

    `node.incarnation` is that of the process; after a lost lease a counter is appended to it.
    """

    def __init__(self, node: NodeInfo, limits: AgentLimits) -> None:
        self.member = Membership(node, limits)  # to be read only
        self._gangs: dict[GangKey, Gang] = {}
        self._fences: dict[str, int] = {}  # by job: no attempt up to this one starts any more
        self._reports = 0
        self._ticked_s = 0.0

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
    def gone(self) -> bool:
        """Whether the agent is leaving and nothing is left to end or report."""
        return self.member.standing.leaving is not None and not any(
            gang.alive or any(rank.held_exit for rank in gang.ranks.values())
            for gang in self._gangs.values()
        )

    @property
    def state(self) -> CoreState:
        """All that it knows, to be written down at once: it shares what is in it."""
        return CoreState(self.member.standing, self.gangs, self._fences, self._reports)

    @property
    def _node(self) -> NodeInfo:
        return self.member.node

    @property
    def _busy(self) -> bool:
        return any(gang.alive for gang in self._gangs.values())

    def start(self, at: Moment) -> list[Effect]:
        """Join. No process of an earlier agent on this node may run any more.

        A node that is to be checked joins later: its first check was begun before.
        """
        self._ticked_s = at.mono_s
        return self.member.start(at)

    def adopt(self, state: CoreState) -> list[Effect]:
        """Instead of `start`: be the core that had this state; ask again what it waits for.

        If this agent has another release, its node announces it.
        """
        announced = self.member.adopt(state.standing)
        self._fences = state.fences
        self._gangs = {gang.key: gang for gang in state.gangs}
        self._reports = state.reports
        return [*announced, *awaited_effects(state)]

    def handle(self, item: inputs.Input, at: Moment) -> list[Effect]:
        """The effects of an input. Inputs that come twice or too late have none."""
        if isinstance(item, inputs.HeartbeatAcked):
            self.member.acked(item)
        out = self._without_lease(self.member.lose(at), at)
        out += self._react(item, at)
        out += self._advance()
        return out

    def _react(  # noqa: PLR0911 -- one case for each input
        self, item: inputs.Input, at: Moment
    ) -> list[Effect]:
        match item:
            case Received():
                return self._on_event(item.envelope.data, item.envelope.id, at)
            case Tick():
                return self._on_tick(at)
            case inputs.HeartbeatAcked():
                fresh = item.incarnation == self.incarnation
                return self.member.offer(at, busy=self._busy) if fresh else []
            case inputs.Prepared() | inputs.StoreOpened():
                return self._on_ready(item)
            case inputs.PrepareFailed() | inputs.StoreFailed():
                return self._launch_failed(item)
            case inputs.StacksTaken():
                return stops.on_stacks(self._node, self._gangs.get(item.gang), item, at)
            case inputs.NodeChecked():
                return self.member.checked(item, at, busy=self._busy)
            case inputs.Leave():
                return self._on_leave(item, at)
            case _:
                gang = self._gangs.get(item.rank.gang)
                rank = gang.ranks.get(item.rank.rank) if gang is not None else None
                return self._of_rank(gang, rank, item, at) if gang and rank else []

    def _of_rank(  # noqa: PLR0911 -- one case for each input
        self, gang: Gang, rank: Rank, item: inputs.RankInput, at: Moment
    ) -> list[Effect]:
        match item:
            case inputs.RankSpawned() if rank.phase is Phase.STARTING:
                rank.phase, rank.pid = Phase.RUNNING, item.pid
                killed = rank.killed_at_s is not None
                rest = stops.kill(rank, at) if killed else stops.terminate(gang, at)
                return [announce.started(self._node, gang, rank), *rest]
            case inputs.SpawnFailed() if rank.phase is Phase.STARTING:
                gang.failed = True
                return exits.never_ran(self._node, gang, rank, item.message)
            case inputs.RankMessage() if rank.alive and not gang.over:
                self._reports += 1
                return on_message(self._node, gang, rank, item, at, self._reports)
            case inputs.NoSoundCopy():
                rank.damaged_object = item.key
            case inputs.ShardChecked():
                return saves.on_checked(self._node, gang, rank, item)
            case inputs.Uploaded() | inputs.UploadFailed():
                return saves.on_upload(self._node, gang, rank, item, at)
            case inputs.OutputsStored():
                return exits.on_stored(self._node, gang, rank, item, at)
            case inputs.RankExited() if rank.alive:
                return exits.on_exited(self._node, gang, rank, item, at)
        return []

    def _on_event(  # noqa: PLR0911 -- one case for each event
        self, event: Event, event_id: str, at: Moment
    ) -> list[Effect]:
        match event:
            case GangAllocated():
                return self._on_allocated(event, at)
            case GangStopping():
                gang = self._gangs.get(GangKey(event.job_id, event.attempt))
                return stops.on_stopping(self._node, gang, event, at) if gang else []
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
                return stops.take_stacks(gang, at) if gang else []
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
        if not mine or key in self._gangs or not self.member.takes_gangs:
            return out
        assignment = mine[0]
        ranks = {
            rank: Rank(RankKey(key, rank), local) for local, rank in enumerate(assignment.ranks)
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
                out += stops.end(gang, ExitReason.FENCED, at)
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
                out += exits.report_held(gang, at)
        return out

    def _on_ready(self, item: inputs.Prepared | inputs.StoreOpened) -> list[Effect]:
        gang = self._gangs.get(item.gang)
        if gang is None:
            return [CloseGang(item.gang, final=False)]
        if isinstance(item, inputs.Prepared):
            gang.prepared = True
            if gang.hosts_store and not gang.over and not gang.store_open:
                rendezvous = gang.allocation.rendezvous
                return [OpenStore(gang.key, rendezvous.address, rendezvous.port)]
        else:
            gang.store_open = True
        return []

    def _launch_failed(self, item: inputs.PrepareFailed | inputs.StoreFailed) -> list[Effect]:
        gang = self._gangs.get(item.gang)
        if gang is None:
            return [CloseGang(item.gang, final=False)]
        if gang.over:
            return []
        gang.failed = True
        code, damaged = None, None
        if isinstance(item, inputs.PrepareFailed):
            code, damaged = exits.EXIT_CONFIG if item.user_fault else None, item.damaged_object
        out: list[Effect] = []
        for rank in gang.ranks.values():
            if rank.phase is Phase.WAITING:
                out += exits.never_ran(self._node, gang, rank, item.message, code, damaged)
        return out

    def _may_spawn(self, gang: Gang) -> bool:
        return self._is_ready(gang) and not self._in_the_way(gang)

    def _is_ready(self, gang: Gang) -> bool:
        """Whether it starts as soon as no other gang is in its way."""
        if gang.over or gang.failed or gang.stop is not None or not gang.prepared:
            return False
        return gang.store_open or not gang.hosts_store

    def _in_the_way(self, gang: Gang) -> list[Gang]:
        """The gangs with processes on its GPUs, and those of an older attempt."""
        return [
            other
            for other in self._gangs.values()
            if other is not gang
            and other.alive
            and (other.key.job_id == gang.key.job_id or other.gpus & gang.gpus)
        ]

    def _fail_held(self, at: Moment) -> list[Effect]:
        """Let gangs fail that wait for GPUs whose processes survive SIGKILL for `_HELD_S`."""
        out: list[Effect] = []
        for gang in self.gangs:
            waits = any(rank.phase is Phase.WAITING for rank in gang.ranks.values())
            others = self._in_the_way(gang) if waits and self._is_ready(gang) else []
            if not others or not all(other.over for other in others):
                gang.held_since_s = None
                continue
            gang.held_since_s = at.mono_s if gang.held_since_s is None else gang.held_since_s
            if at.mono_s - gang.held_since_s >= _HELD_S:
                pids = [rank.pid for rank in others[0].ranks.values() if rank.alive]
                message = (
                    f"its GPUs are used by process {pids[0]} of job {others[0].key.job_id}, which "
                    f"survives SIGKILL for {_HELD_S:.0f} s: reboot the node"
                )
                held = inputs.PrepareFailed(gang.key, user_fault=False, message=message)
                out += self._launch_failed(held)
        return out

    def _on_tick(self, at: Moment) -> list[Effect]:
        out: list[Effect] = []
        self._forgive_if_deaf(at)
        out += self.member.beat(self.gangs, at)
        for gang in self.gangs:
            late = gang.stop_by_s is not None and at.mono_s >= gang.stop_by_s
            out += stops.terminate(gang, at)
            if late or gang.over:
                out += stops.kill_rest(gang, at)
            out += exits.report_held(gang, at)
            out += stops.kill_again(gang, at)
        return out + self._fail_held(at)

    def _forgive_if_deaf(self, at: Moment) -> None:
        """After this process stood still no rank is quiet: this process did not read."""
        if at.mono_s - self._ticked_s >= _STOOD_STILL_S:
            for gang in self.gangs:
                for rank in gang.ranks.values():
                    rank.pace.forgive(at.mono_s)
        self._ticked_s = at.mono_s

    def _on_node_failed(self, event: NodeFailed, at: Moment) -> list[Effect]:
        if event.reason != "forgotten" or event.node_id != self.member.node.node_id:
            return []
        return self._without_lease(self.member.forgotten(event.incarnation), at)

    def _without_lease(self, out: list[Effect], at: Moment) -> list[Effect]:
        """End all ranks, if the node has to join again."""
        if out:
            for gang in self.gangs:
                out += stops.end(gang, ExitReason.LEASE_LOST, at)
        return out

    def _on_leave(self, item: inputs.Leave, at: Moment) -> list[Effect]:
        """A second one can only shorten the time that ranks have."""
        out = self.member.leave(item.reason)
        for gang in self.gangs:
            out += stops.stop(self._node, gang, "drain", item.grace_s, at)
        return out

    def _advance(self) -> list[Effect]:
        """Start the gangs that may start now, close those that are over."""
        out: list[Effect] = []
        for gang in self.gangs:
            if gang.over and not gang.alive:
                out += exits.report_held(gang, None)
                del self._gangs[gang.key]
                out.append(CloseGang(gang.key, gang.final))
            elif self._may_spawn(gang):
                for rank in gang.ranks.values():
                    if rank.phase is Phase.WAITING:
                        rank.phase = Phase.STARTING
                        out.append(Spawn(rank.key, rank.local_rank))
        return out
