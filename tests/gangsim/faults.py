"""What can go wrong. Each kind begins at its time and, if it lasts, gives back what ends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gangline_schemas.catalog import Topic
from gangsim import user_faults
from gangsim.bus import SimCrash, SimPause
from gangsim.parts import HEARTBEAT_S
from gangsim.plan import Fault

if TYPE_CHECKING:
    from gangsim.training import RankProcess
    from gangsim.world import World

End = Callable[[], None] | None
RETRY_S = 3.0


class Injector:
    """Lets the faults of a plan happen, and ends those that last."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ends: list[Callable[[], None]] = []
        self._healed = False

    def schedule(self) -> None:
        """Put every fault at its time."""
        for fault in self._world.plan.faults:
            self._world.engine.after(fault.at_s, self._beginning(fault))

    def heal(self) -> None:
        """End all that last; nothing new begins."""
        self._healed = True
        for end in self._ends:
            end()
        self._ends.clear()
        self._world.broker.strikes.armed.clear()
        self._world.broker.strikes.leaks.clear()

    def _beginning(self, fault: Fault) -> Callable[[], None]:
        def begin() -> None:
            if self._healed:
                return
            self._world.engine.note("fault", fault.kind, fault.target, fault.detail)
            end = KINDS[fault.kind](self._world, fault)
            if end is None:
                return
            self._ends.append(end)
            self._world.engine.after(fault.duration_s, lambda: self._end(end))

        return begin

    def _end(self, end: Callable[[], None]) -> None:
        if end in self._ends:
            self._ends.remove(end)
            end()


# Services.


def _crash(world: World, fault: Fault) -> End:
    """At a point of the loop; points of a takeover need a crash first."""
    world.broker.strikes.armed[fault.target, fault.detail] = SimCrash
    for process in world.process(fault.target):
        if fault.detail.startswith("takeover") and process.loop is not None:
            process.crash("fault")
        process.wake()

    def disarm() -> None:
        world.broker.strikes.armed.pop((fault.target, fault.detail), None)

    return disarm


def _forget(world: World, fault: Fault) -> End:
    """Kafka forgets how far a service had read, which it finds out when it starts again."""
    group = f"{world.names.prefix}gangline.{fault.target}.0.inputs"
    if world.broker.offsets.pop(group, None):
        world.engine.count("offsets forgotten")
    for process in world.process(fault.target):
        if process.loop is not None:
            process.crash("fault")


def _pause(world: World, fault: Fault) -> End:
    """Longer than the session, between cycles or just before a commit; it comes back."""
    processes = [process for process in world.process(fault.target) if process.loop is not None]
    if fault.detail == "commit":
        world.broker.strikes.armed[fault.target, "commit.begin"] = SimPause
    else:
        for process in processes:
            process.pause()

    def resume() -> None:
        world.broker.strikes.armed.pop((fault.target, "commit.begin"), None)
        for process in world.process(fault.target):
            process.resume()

    return resume


def _clock(world: World, fault: Fault) -> End:
    """The clock of a service's machine or of a node jumps, and later jumps back."""
    node = world.nodes.get(fault.target)
    clocks = world.process(fault.target) if node is None else [node]
    for clock in clocks:
        clock.clock_offset_s += fault.amount

    def back() -> None:
        for clock in clocks:
            clock.clock_offset_s -= fault.amount

    return back


def _leak(world: World, fault: Fault) -> End:
    """An EndTxn is lost on its way and arrives later, perhaps in the next transaction."""
    strikes = world.broker.strikes

    def arrange(service: str, delay_s: float) -> None:
        name = f"gangline.{service}.0"
        epoch = world.broker.writers[name].epoch

        def arrive() -> None:
            acted = world.broker.late_end(name, epoch, commit=True)
            world.engine.count(f"late-end: {acted}")
            world.engine.note("late-end", name, acted)

        if fault.detail == "in the next":
            strikes.mid_commit[service] = arrive
        else:
            world.engine.after(delay_s, arrive)

    strikes.on_leak = arrange
    strikes.leaks[fault.target] = fault.amount

    def disarm() -> None:
        strikes.leaks.pop(fault.target, None)

    return disarm


def _broker_down(world: World, fault: Fault) -> End:
    world.broker.down = True
    world.engine.note("broker", fault.kind)

    def up() -> None:
        world.broker.down = False
        for process in world.processes:
            process.wake()

    return up


def _poison(world: World, fault: Fault) -> End:
    """The next input of a harmless type ends the service, each time it is decided."""
    if fault.target in world.poisons.armed:
        return None
    world.poisons.armed[fault.target] = (fault.detail, fault.amount > 0)
    world.users.bother(fault.detail)

    def disarm() -> None:
        world.poisons.armed.pop(fault.target, None)

    return disarm


# Networks and machines.


def _cut_send(world: World, fault: Fault) -> End:
    node = world.nodes[fault.target]
    node.cut_send = True

    def mend() -> None:
        node.cut_send = False

    return mend


def _cut_receive(world: World, fault: Fault) -> End:
    node = world.nodes[fault.target]
    node.cut_receive = True

    def mend() -> None:
        node.cut_receive = False

    return mend


def _silence(world: World, fault: Fault) -> End:
    """No heartbeats can be read, or none is taken: the bus's fault, not the nodes'.

    Silences may overlap: all are silent from the first one's begin to the last one's end. What was
    taken is read then, late: a node's lease rests on it.
    """
    heartbeats = world.names.name(Topic.HEARTBEATS)
    if not world.silences:
        world.mass_silence_since_s = world.engine.now_s
        world.broker.hold(heartbeats)
    since_s = world.mass_silence_since_s
    world.silences.append(fault)

    def over() -> None:
        world.silences.remove(fault)
        if not world.silences:
            world.broker.let_read(heartbeats)
            world.heard.update(dict.fromkeys(world.unread, world.engine.now_s))
            world.unread.clear()
            world.engine.after(2 * HEARTBEAT_S, heard)

    def heard() -> None:
        if world.mass_silence_since_s == since_s:
            world.mass_silence_since_s = None

    return over


def _duplicate(world: World, fault: Fault) -> End:
    world.broker.strikes.copied[fault.target] = 2

    def once() -> None:
        world.broker.strikes.copied.pop(fault.target, None)

    return once


def _late(world: World, fault: Fault) -> End:
    """The records of one key are late; those of others overtake them."""
    node = world.nodes[fault.target]
    node.holding, node.held_key = True, None

    def deliver() -> None:
        node.holding, node.held_key = False, None
        node.flush()

    return deliver


def _agent_crash(world: World, fault: Fault) -> End:
    world.nodes[fault.target].crash()
    return None


def _agent_leave(world: World, fault: Fault) -> End:
    world.nodes[fault.target].leave()
    return None


def _agent_pause(world: World, fault: Fault) -> End:
    process = world.nodes[fault.target].process
    if process is None:
        return None
    process.pause()
    return process.resume


def _node_loss(world: World, fault: Fault) -> End:
    world.nodes[fault.target].crash(lose=True)
    return None


def _strike_rank(world: World, fault: Fault, strike: Callable[[RankProcess], None]) -> None:
    """Do something to a running rank of a node, as soon as there is one."""

    def attempt(tries: int) -> None:
        ranks = [rank for rank in world.machines.running.values() if rank.node_id == fault.target]
        if ranks:
            rank = min(ranks, key=lambda item: item.key)
            world.engine.note("rank.fault", fault.kind, rank.key.gang.job_id, rank.key.rank)
            strike(rank)
        elif tries:
            world.engine.after(RETRY_S, lambda: attempt(tries - 1))

    attempt(20)


def _rank_crash(world: World, fault: Fault) -> End:
    _strike_rank(world, fault, lambda rank: rank.end(signal=int(fault.amount) or 9))
    return None


def _rank_error(world: World, fault: Fault) -> End:
    _strike_rank(world, fault, lambda rank: rank.end(code=2, words="ValueError: bad shape"))
    return None


def _rank_hang(world: World, fault: Fault) -> End:
    """Neither steps nor handles SIGTERM; after a while it fails, if it still lives."""
    hung: list[RankProcess] = []
    over: list[bool] = []

    def go_on() -> None:
        over.append(True)
        for rank in hung:
            rank.hung = False
            rank.end(code=1, words="Socket Timeout")
        hung.clear()

    def hang(rank: RankProcess) -> None:
        if not over:
            rank.hung = True
            hung.append(rank)

    _strike_rank(world, fault, hang)
    return go_on


# The store.


def _store_away(world: World, fault: Fault) -> End:
    world.store.away = fault.detail == "away"
    world.store.full = fault.detail == "full"

    def back() -> None:
        world.store.away = world.store.full = False

    return back


def _store_damage(world: World, fault: Fault) -> End:
    if fault.detail == "torn":
        world.store.torn = int(fault.amount) or 1
    else:
        world.engine.note("flipped", world.store.flip())
    return None


KINDS: dict[str, Callable[[World, Fault], End]] = {
    "crash": _crash,
    "pause": _pause,
    "clock": _clock,
    "leak": _leak,
    "broker": _broker_down,
    "poison": _poison,
    "cut.send": _cut_send,
    "cut.receive": _cut_receive,
    "silence": _silence,
    "duplicate": _duplicate,
    "late": _late,
    "agent.crash": _agent_crash,
    "agent.leave": _agent_leave,
    "agent.pause": _agent_pause,
    "forget": _forget,
    "garbage": user_faults.garbage,
    "node.loss": _node_loss,
    "rank.crash": _rank_crash,
    "rank.error": _rank_error,
    "rank.hang": _rank_hang,
    "store.away": _store_away,
    "store.damage": _store_damage,
    "user.again": user_faults.submit_again,
    "user.cancel": user_faults.cancel,
    "user.priority": user_faults.priority,
    "user.restore": user_faults.restore,
    "user.drain": user_faults.drain,
    "user.team": user_faults.team,
}
