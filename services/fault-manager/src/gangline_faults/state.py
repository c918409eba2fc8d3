"""The fold of gangline.faults: what is watched, what failed, how many restarts were used."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from datetime import datetime

from gangline_faults.model import Gang, Health, Listening, Node, NotedExit
from gangline_schemas.base import Event
from gangline_schemas.events.faults import (
    ExitNoted,
    GangFailed,
    GangUnwatched,
    GangWatched,
    NodeFailed,
    NodeRecovered,
    NodeSuspected,
    NodeWatched,
)

PAST_INCARNATIONS = 32
ENDED_JOBS = 1000
EARLY_EXITS = 8


@dataclass(slots=True)
class FaultState:
    """`listening` is soft: no part of the log, and none of the fingerprint.

    `early` are failed exits of attempts that this service has not been told of yet. `ended` is a
    bounded memory of finished jobs, so that a late duplicate brings none back.
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    gangs: dict[str, Gang] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    restarts_used: dict[str, int] = field(default_factory=dict)
    early: dict[tuple[str, int], tuple[NotedExit, ...]] = field(default_factory=dict)
    settling: dict[str, None] = field(default_factory=dict)
    ended: dict[str, None] = field(default_factory=dict)
    listening: Listening = field(default_factory=Listening)


def apply(state: FaultState, event: Event, at: datetime) -> None:
    """Change the state by one event of the own log, decided `at` this time."""
    match event:
        case NodeWatched():
            _watch_node(state, event, at)
        case NodeSuspected():
            state.nodes[event.node_id].health = Health.SUSPECTED
        case NodeFailed():
            left = event.reason == "left"
            state.nodes[event.node_id].health = Health.LEFT if left else Health.FAILED
        case NodeRecovered():
            state.nodes[event.node_id].health = Health.HEALTHY
        case GangWatched():
            _watch_gang(state, event)
        case GangUnwatched():
            _unwatch_gang(state, event)
        case ExitNoted():
            _note_exit(state, event)
        case GangFailed():
            state.gangs[event.job_id].failed = True
            state.gangs[event.job_id].noted = None
            state.restarts_used[event.job_id] = event.restarts_used
            state.settling.pop(event.job_id, None)
        case _:
            pass  # a type of a later version: it changes nothing here


def _watch_node(state: FaultState, event: NodeWatched, at: datetime) -> None:
    old = state.nodes.get(event.node_id)
    past = () if old is None else (*old.past, old.incarnation)[-PAST_INCARNATIONS:]
    state.nodes[event.node_id] = Node(event.incarnation, past=past)
    state.listening.seen.pop(event.node_id, None)
    state.listening.watched[event.node_id] = at


def _watch_gang(state: FaultState, event: GangWatched) -> None:
    state.gangs[event.job_id] = Gang(event.attempt, event.nodes, event.incarnations, event.restart)
    state.attempts[event.job_id] = event.attempt
    state.settling.pop(event.job_id, None)
    for key in [key for key in state.early if key[0] == event.job_id and key[1] <= event.attempt]:
        del state.early[key]


def _unwatch_gang(state: FaultState, event: GangUnwatched) -> None:
    state.early.pop((event.job_id, event.attempt), None)
    state.listening.gangs.pop(event.job_id, None)
    gang = state.gangs.get(event.job_id)
    if gang is not None and gang.attempt <= event.attempt:
        del state.gangs[event.job_id]
        state.settling.pop(event.job_id, None)
    if not event.final:
        return
    state.attempts.pop(event.job_id, None)
    state.restarts_used.pop(event.job_id, None)
    for key in [key for key in state.early if key[0] == event.job_id]:
        del state.early[key]
    state.ended[event.job_id] = None
    while len(state.ended) > ENDED_JOBS:
        del state.ended[next(iter(state.ended))]


def _note_exit(state: FaultState, event: ExitNoted) -> None:
    exited = event.exited
    noted = NotedExit(exited, event.noted_at)
    gang = state.gangs.get(exited.job_id)
    if gang is not None and gang.attempt == exited.attempt:
        gang.noted = noted
        state.settling[exited.job_id] = None
        return
    key = (exited.job_id, exited.attempt)
    state.early[key] = (*state.early.get(key, ()), noted)


def fingerprint(state: FaultState) -> str:
    """sha256 over the hard state: equal for a replay of the same log."""
    content = {
        "nodes": {
            node_id: [node.incarnation, node.health.value, list(node.past)]
            for node_id, node in state.nodes.items()
        },
        "gangs": {
            job_id: [
                gang.attempt,
                list(gang.nodes),
                list(gang.incarnations),
                gang.restart.data(),
                None if gang.noted is None else _noted(gang.noted),
                gang.failed,
            ]
            for job_id, gang in state.gangs.items()
        },
        "attempts": state.attempts,
        "restarts_used": state.restarts_used,
        "early": {
            f"{job_id}/{attempt}": [_noted(item) for item in noted]
            for (job_id, attempt), noted in state.early.items()
        },
        "settling": sorted(state.settling),
        "ended": list(state.ended),
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _noted(item: NotedExit) -> list[object]:
    return [item.exited.data(), item.noted_at.isoformat()]
