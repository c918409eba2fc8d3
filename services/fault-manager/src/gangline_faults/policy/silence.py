"""Silent nodes: decided at Ticks from heartbeats, with guards against our own outages.

1. A silence counts from the latest of: the node's last heartbeat, the moment it was watched, and
   the beginning of liveness in this process (a takeover restarts every clock).
2. This process may stand still (a long gap between Ticks), or no heartbeat of any node may come for
   half the timeout. Then the fault is more likely ours or the bus's, and every clock restarts once
   it is over.
3. Mass silence: with two or more live nodes, clocks stand still from `unheard_s` after the last
   heartbeat of any node until the next one. So no node is suspected or failed for it, not even one
   that was silent before: its heartbeats since then could not arrive.

Why rule 3 is safe: heartbeats that the bus acknowledged are read once any node is received again.
So a node that fails by this rule was not acknowledged for the timeout less `unheard_s`. Its lease
is shorter (agent/config.py), so it had stopped its ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice

from gangline_faults.model import Health, Listening, Node
from gangline_faults.policy.timing import Timing

MASS_NODES = 2
GAPS = 6
"""Before each of them a clock ran for `unheard_s`, a sixth of the timeout: of more none matters."""

STRANGER_S = 60.0
STRANGERS = 1000


@dataclass(frozen=True, slots=True)
class Silences:
    """The findings of a Tick, by node id in order: seconds of silence, and recovered nodes."""

    suspected: Mapping[str, float]
    failed: Mapping[str, float]
    recovered: tuple[str, ...]


def silent_s(listening: Listening, node_id: str, now: datetime) -> float:
    """Seconds since the node's last possible heartbeat, without those when no node was received."""
    known = (
        listening.seen.get(node_id),
        listening.watched.get(node_id),
        listening.since,
    )
    latest = max((moment for moment in known if moment is not None), default=now)
    stood_s = sum(gap_s for end, gap_s in listening.gaps if end > latest)
    return max(0.0, (now - latest).total_seconds() - stood_s)


def find_silences(
    nodes: Mapping[str, Node], listening: Listening, now: datetime, timing: Timing
) -> Silences:
    """The nodes to suspect, to fail or to declare recovered now.

    Cost: one look at each node; more only at nodes that are unhealthy or without a recent
    heartbeat.
    """
    lately = now - timedelta(seconds=timing.suspect_s)
    seen = listening.seen
    doubtful = sorted(
        node_id
        for node_id, node in nodes.items()
        if node.health is not Health.HEALTHY or not _after(seen.get(node_id), lately)
    )
    until = now if _fewer_live(nodes, MASS_NODES) else _until(listening, now, timing)
    live = {
        node_id: silent_s(listening, node_id, until)
        for node_id in doubtful
        if nodes[node_id].health.live
    }
    recovered = tuple(
        node_id
        for node_id in doubtful
        if nodes[node_id].health in {Health.SUSPECTED, Health.FAILED}
        and _after(seen.get(node_id), lately)
    )
    failed = {node_id: gap for node_id, gap in live.items() if gap >= timing.heartbeat_timeout_s}
    suspected = {
        node_id: gap
        for node_id, gap in live.items()
        if gap >= timing.suspect_s
        and node_id not in failed
        and nodes[node_id].health is Health.HEALTHY
    }
    return Silences(suspected, failed, recovered)


def _after(heard: datetime | None, moment: datetime) -> bool:
    return heard is not None and heard > moment


def _fewer_live(nodes: Mapping[str, Node], count: int) -> bool:
    live = (node for node in nodes.values() if node.health.live)
    return len(list(islice(live, count))) < count


def note_tick(listening: Listening, now: datetime, timing: Timing) -> None:
    """Begin liveness at the first Tick, and again when this process or its clock jumped."""
    last = listening.last_tick
    gap_s = None if last is None else (now - last).total_seconds()
    if gap_s is None or gap_s < 0 or gap_s > timing.deaf_s:
        listening.since = now
        listening.last_signal = None
        listening.seen = {}
        listening.watched = {}
        listening.gaps = ()
        listening.gangs = {}
    listening.last_tick = now


def note_heartbeat(listening: Listening, node_id: str, now: datetime, timing: Timing) -> None:
    """Note a node's heartbeat; clocks do not count a time without any heartbeat."""
    last = listening.last_signal or listening.since
    gap_s = 0.0 if last is None else (now - last).total_seconds()
    if gap_s >= timing.suspect_s:
        listening.since = now
        listening.gaps = ()
    elif gap_s > timing.unheard_s:
        gaps = (*listening.gaps, (now, gap_s - timing.unheard_s))
        listening.gaps = gaps[-GAPS:]
    listening.last_signal = now
    listening.seen[node_id] = now


def note_stranger(listening: Listening, node_id: str, incarnation: str, now: datetime) -> None:
    """Note a heartbeat of an unknown node."""
    known = listening.strangers.get(node_id)
    if known is not None and known[0] == incarnation:
        return
    if known is not None or len(listening.strangers) < STRANGERS:
        listening.strangers[node_id] = (incarnation, now)


def find_strangers(listening: Listening, now: datetime) -> dict[str, str]:
    """Incarnations with heartbeats that stayed unknown for `STRANGER_S`, by node.

    A joining node's heartbeat may be read before its node.joined: that is another topic.
    """
    return {
        node_id: incarnation
        for node_id, (incarnation, since) in sorted(listening.strangers.items())
        if (now - since).total_seconds() >= STRANGER_S
    }


def _until(listening: Listening, now: datetime, timing: Timing) -> datetime:
    """When the clocks stopped, or now. Nodes that join prove nothing: they do by another topic."""
    last = listening.last_signal or listening.since or now
    return min(now, last + timedelta(seconds=timing.unheard_s))
