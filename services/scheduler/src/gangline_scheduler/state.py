"""What the scheduler knows: the fold of gangline.scheduling and of nothing else.

`nodes, jobs, teams, ended, lost` are the facts. The rest is derived from them while folding, so
that a decision costs what it is about and not what the cluster holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from gangline_scheduler.model import EndedRun, FreeNode, Job, Node, Team

ENDED_RUNS_KEPT = 100_000
LOST_NODES_KEPT = 10_000


@dataclass(slots=True)
class State:
    """The scheduler's state. Values are frozen, so that `fork` is a copy of the dicts alone.

    `lost`: incarnations that failed before they joined here, by node.
    Derived: `pending` in the order in which jobs began to wait, by id; `live` jobs with a gang;
    `free` of each schedulable node; `used` GPUs by team; `free_gpus` in all.
    """

    teams: dict[str, Team] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    ended: dict[str, EndedRun] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    pending: dict[str, None] = field(default_factory=dict)
    live: dict[str, None] = field(default_factory=dict)
    free: dict[str, FreeNode] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    free_gpus: int = 0


def fork(state: State) -> State:
    """A copy to try decisions on.

    Its memory of ended runs begins empty: that one is large, and not needed there.
    """
    return State(
        teams=dict(state.teams),
        nodes=dict(state.nodes),
        jobs=dict(state.jobs),
        ended={},
        lost=dict(state.lost),
        pending=dict(state.pending),
        live=dict(state.live),
        free=dict(state.free),
        used=dict(state.used),
        free_gpus=state.free_gpus,
    )


def fingerprint(state: State) -> str:
    """The same for equal states, whatever the order in which dicts were filled; sha256 in hex."""
    lines: list[str] = []
    lines += _lines("team", ((name, repr(team)) for name, team in state.teams.items()))
    lines += _lines("node", ((name, repr(node)) for name, node in state.nodes.items()))
    lines += _lines("job", ((job_id, repr(job)) for job_id, job in state.jobs.items()))
    lines += _lines("ended", ((job_id, repr(run)) for job_id, run in state.ended.items()))
    lines += _lines("lost", state.lost.items())
    lines += [f"pending {job_id}" for job_id in state.pending]
    lines += _lines("free", ((name, repr(free)) for name, free in state.free.items()))
    lines += _lines("used", ((team, str(gpus)) for team, gpus in state.used.items() if gpus))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _lines(kind: str, entries: Iterable[tuple[str, str]]) -> list[str]:
    return [f"{kind} {name} {value}" for name, value in sorted(entries)]
