"""What users do in the middle of everything. Each gives back what ends it, if it lasts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gangline_schemas.catalog import Topic
from gangline_schemas.events.admin import NodeDrainRequested, TeamConfigureRequested
from gangline_schemas.events.requests import (
    JobCancelRequested,
    JobPriorityRequested,
    JobRestoreRequested,
)
from gangline_schemas.team_limits import TeamConfig
from gangsim.plan import Fault
from gangsim.users import TEAMS

if TYPE_CHECKING:
    from gangsim.world import World

End = Callable[[], None] | None


def submit_again(world: World, fault: Fault) -> End:
    world.users.submit(fault.target, again=int(fault.amount))
    return None


def cancel(world: World, fault: Fault) -> End:
    world.users.send(fault.target, JobCancelRequested(job_id=fault.target))
    return None


def priority(world: World, fault: Fault) -> End:
    event = JobPriorityRequested(job_id=fault.target, priority=int(fault.amount))
    world.users.send(fault.target, event)
    return None


def restore(world: World, fault: Fault) -> End:
    """To the oldest checkpoint that is still there, or to a step that never was."""
    known = world.watch.checkpoints.committed.get(fault.target, [])
    kept = [at for at in known if (fault.target, *at) not in world.watch.checkpoints.gone]
    step = kept[0][1] if kept else 7
    world.users.send(fault.target, JobRestoreRequested(job_id=fault.target, step=step))
    return None


def team(world: World, fault: Fault) -> End:
    """A team gets other limits, perhaps below what it holds; later its old ones again."""
    before = next(team for team in TEAMS if team.team == fault.target)
    limit = int(fault.amount)
    config = TeamConfig(team=fault.target, gpu_limit=limit)
    world.users.send(fault.target, TeamConfigureRequested(config=config, user="admin"))
    return lambda: world.users.send(
        fault.target, TeamConfigureRequested(config=before, user="admin")
    )


def garbage(world: World, fault: Fault) -> End:
    world.users.spoil(Topic(fault.target))
    return None


def drain(world: World, fault: Fault) -> End:
    world.users.send(fault.target, NodeDrainRequested(node_id=fault.target, drain=True))
    return lambda: world.users.send(
        fault.target, NodeDrainRequested(node_id=fault.target, drain=False)
    )
