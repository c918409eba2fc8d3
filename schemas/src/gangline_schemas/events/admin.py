"""gangline.admin: what administrators ask of teams, nodes, data and alerts."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from gangline_schemas.alerts import SilenceScope
from gangline_schemas.base import Event, Identifier, Timestamp
from gangline_schemas.data_use import SnapshotName
from gangline_schemas.limits import Few, Label, Message, ShortText, User
from gangline_schemas.team_limits import TeamConfig


class TeamConfigureRequested(Event):
    """Create or change a team; refused if it would break the tree of teams."""

    type: ClassVar[str] = "team.configure.requested"
    config: TeamConfig
    user: User = "unknown"


class TeamsConfigureRequested(Event):
    """Create or change many teams at once: all of them, or none if the tree would be broken."""

    type: ClassVar[str] = "teams.configure.requested"
    teams: tuple[TeamConfig, ...] = Field(min_length=1, max_length=10_000)
    user: User = "unknown"


class SnapshotApprovalRequested(Event):
    """Let the jobs of a project use this data for a purpose, or no longer (`approve` is false)."""

    type: ClassVar[str] = "snapshot.approval.requested"
    snapshot: SnapshotName
    project: Identifier
    purpose: ShortText
    approve: bool = True
    user: User = "unknown"


class NodeDrainRequested(Event):
    """Stop placing gangs on a node (`drain`), or place them there again."""

    type: ClassVar[str] = "node.drain.requested"
    node_id: Identifier
    drain: bool = True
    move_jobs: bool = Field(
        default=True,
        description="Gangs there move to other nodes after their next checkpoint; else they "
        "keep running.",
    )
    reason: Message = Field(default="", description="Why, in the requester's words.")
    user: User = "unknown"


class SilenceRequested(Event):
    """Send no notifications of these alerts until then. They are still raised and listed."""

    type: ClassVar[str] = "alert.silence.requested"
    scope: SilenceScope
    until: Timestamp
    comment: Label = ""
    user: User = "unknown"


class UnsilenceRequested(Event):
    """End a silence early. Its alerts that still hold are notified then."""

    type: ClassVar[str] = "alert.unsilence.requested"
    silence: Few = Field(description="Its number, as `silence.begun` names it.")
    user: User = "unknown"
