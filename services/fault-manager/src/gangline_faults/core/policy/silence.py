"""Silent nodes: decided at Ticks from heartbeats, with guards against our own outages.

1. A silence counts from the latest of: the node's last heartbeat, the moment it was watched, and
   the beginning of liveness in this process (a takeover restarts every clock).
2. This process may stand still (a long gap between Ticks), or no heartbeat of any node may come for
   half the timeout. Then the fault is more likely ours or the bus's, and every clock restarts once
   it is over.
3. Mass silence: with two or more live nodes, clocks stand still from `mass_silence_s` after the
   last heartbeat of any node until the next one. So no node is suspected or failed for it, not even
   one that was silent before: its heartbeats since then could not arrive.
4. This process may be behind on some partitions of heartbeats and not on others. So a node's clock
   counts only up to the time until which its partition was read, or all were if it is not known.

Why rule 3 is safe: heartbeats that the bus acknowledged are read once any node is received again.
So a node that fails by this rule was not acknowledged for the timeout less `mass_silence_s`. Its
lease is shorter (agent/config.py), so it had stopped its ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from types import MappingProxyType

from gangline_bus.ports import TopicPartition
from gangline_faults.core.model import Health, Liveness, Node
from gangline_faults.core.policy.timing import Timing
from gangline_schemas.base import Event
from gangline_schemas.events.faults import GangUnwatched, NodeFailed, NodeLeft, NodeWatched

MASS_NODES = 2
GAPS = 6
"""A sixth of the timeout passed before each (`mass_silence_s`), so more than six never matter."""

STRANGER_S = 60.0
STRANGERS = 1000


@dataclass(frozen=True, slots=True)
class Silences:
    """The findings of a Tick, by node id in order: seconds of silence, and recovered nodes."""

    suspected: Mapping[str, float]
    failed: Mapping[str, float]
    recovered: tuple[str, ...]


def silent_s(liveness: Liveness, node_id: str, now: datetime) -> float:
    """Seconds since the node's last possible heartbeat, as far as heartbeats were read.

    Those when no node was received do not count.
    """
    known = (
        liveness.seen.get(node_id),
        liveness.watched.get(node_id),
        liveness.since,
    )
    latest = max((moment for moment in known if moment is not None), default=now)
    stood_s = sum(gap_s for end, gap_s in liveness.gaps if end > latest)
    until = min(now, _read_until(liveness, node_id, now))
    return max(0.0, (until - latest).total_seconds() - stood_s)


def find_silences(
    nodes: Mapping[str, Node], liveness: Liveness, now: datetime, timing: Timing
) -> Silences:
    """The nodes to suspect, to fail or to declare recovered now.

    Cost: one look at each node; more only at nodes that are unhealthy or without a recent
    heartbeat.
    """
    lately = now - timedelta(seconds=timing.suspect_s)
    seen = liveness.seen
    doubtful = sorted(
        node_id
        for node_id, node in nodes.items()
        if node.health is not Health.HEALTHY or not _after(seen.get(node_id), lately)
    )
    until = now if _fewer_live(nodes, MASS_NODES) else _until(liveness, now, timing)
    live = {
        node_id: silent_s(liveness, node_id, until)
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


def _after(beat_at: datetime | None, moment: datetime) -> bool:
    return beat_at is not None and beat_at > moment


def _read_until(liveness: Liveness, node_id: str, now: datetime) -> datetime:
    """All heartbeats of a node have its id as key, so they are in one partition."""
    known = liveness.read_until
    place = liveness.places.get(node_id)
    if place is not None and place in known:
        return known[place]
    return min(known.values(), default=now)


def _fewer_live(nodes: Mapping[str, Node], count: int) -> bool:
    live = (node for node in nodes.values() if node.health.live)
    return len(list(islice(live, count))) < count


def note_tick(
    liveness: Liveness,
    now: datetime,
    timing: Timing,
    read_until: Mapping[TopicPartition, datetime] = MappingProxyType({}),
) -> None:
    """Begin liveness at the first Tick, and again when this process or its clock jumped."""
    last = liveness.last_tick
    gap_s = None if last is None else (now - last).total_seconds()
    if gap_s is None or gap_s < 0 or gap_s > timing.deaf_s:
        liveness.since = now
        liveness.last_signal = None
        liveness.seen = {}
        liveness.watched = {}
        liveness.gaps = ()
        liveness.gangs = {}
    liveness.last_tick = now
    liveness.read_until = read_until


def note_decision(liveness: Liveness, event: Event, now: datetime) -> None:
    """Follow what was decided about a node or a gang."""
    match event:
        case NodeWatched(node_id=node_id):
            liveness.seen.pop(node_id, None)
            liveness.strangers.pop(node_id, None)
            liveness.watched[node_id] = now
        case NodeFailed(node_id=node_id):
            liveness.strangers.pop(node_id, None)
        case NodeLeft(node_id=node_id):
            for known in (liveness.strangers, *liveness.of_nodes):
                known.pop(node_id, None)
        case GangUnwatched(job_id=job_id):
            liveness.gangs.pop(job_id, None)


def forget(liveness: Liveness, nodes: Mapping[str, Node]) -> None:
    """Forget nodes that the state has forgotten, before there are more of them than nodes."""
    for known in liveness.of_nodes:
        if len(known) > len(nodes):
            for node_id in known.keys() - nodes.keys():
                del known[node_id]


def note_heartbeat(
    liveness: Liveness, node_id: str, place: TopicPartition, now: datetime, timing: Timing
) -> None:
    """Note a node's heartbeat; clocks do not count a time without any heartbeat."""
    last = liveness.last_signal or liveness.since
    gap_s = 0.0 if last is None else (now - last).total_seconds()
    if gap_s >= timing.suspect_s:
        liveness.since = now
        liveness.gaps = ()
    elif gap_s > timing.mass_silence_s:
        gaps = (*liveness.gaps, (now, gap_s - timing.mass_silence_s))
        liveness.gaps = gaps[-GAPS:]
    liveness.last_signal = now
    liveness.seen[node_id] = now
    liveness.places[node_id] = place


def note_stranger(liveness: Liveness, node_id: str, incarnation: str, now: datetime) -> None:
    """Note a heartbeat of an unknown node."""
    known = liveness.strangers.get(node_id)
    if known is not None and known[0] == incarnation:
        return
    if known is not None or len(liveness.strangers) < STRANGERS:
        liveness.strangers[node_id] = (incarnation, now)


def find_strangers(liveness: Liveness, now: datetime) -> dict[str, str]:
    """Incarnations with heartbeats that stayed unknown for `STRANGER_S`, by node.

    A joining node's heartbeat may be read before its node.joined: that is another topic.
    """
    return {
        node_id: incarnation
        for node_id, (incarnation, since) in sorted(liveness.strangers.items())
        if (now - since).total_seconds() >= STRANGER_S
    }


def _until(liveness: Liveness, now: datetime, timing: Timing) -> datetime:
    """When the clocks stopped, or now. Nodes that join prove nothing: they do by another topic."""
    last = liveness.last_signal or liveness.since or now
    return min(now, last + timedelta(seconds=timing.mass_silence_s))
