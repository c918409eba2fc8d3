"""The values of the state, all frozen, and the soft state: the latest measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from gangline_schemas.alerts import AlertRule, AlertText, Cause, Severity, SilenceScope
from gangline_schemas.events.alerts import GangPlace, NotificationDue
from gangline_schemas.job import Notification

MOST_AT_ONCE = 200
"""So many alerts change at one Tick, as inputs wait for it; the next Ticks change the others."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job that has not ended. While it has GPUs, at `places`, it waits since None."""

    team: str
    name: str
    priority: int
    gpus: int
    notify: tuple[Notification, ...] = ()
    waiting_since: datetime | None = None
    attempt: int = 0
    places: tuple[GangPlace, ...] = ()

    @property
    def held(self) -> int:
        """GPUs that it has."""
        return sum(len(place.gpus) for place in self.places)


@dataclass(frozen=True, slots=True)
class Usage:
    """GPUs that gangs had and nodes offered at the end of a minute with a change.

    `busiest`: the largest share that gangs had at any time of the minute.
    """

    held: int
    offered: int
    busiest: float

    @property
    def share(self) -> float:
        """The share that gangs had at the end; of a node that failed, gangs still have GPUs."""
        return min(1.0, self.held / self.offered) if self.offered else 0.0


@dataclass(frozen=True, slots=True)
class Counts:
    """Events of one hour."""

    ended: int = 0
    failed: int = 0
    saved: int = 0
    unsaved: int = 0
    node_failures: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """A time in which this service was away."""

    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class DataNews:
    """The newest snapshot of a data set, and the columns that moved; the first ones by name."""

    snapshot: str
    baseline: str
    version: int
    found: int
    columns: tuple[str, ...]
    at: datetime


@dataclass(frozen=True, slots=True)
class Aged:
    """The data of a champion, which are older than its gate allows."""

    snapshot: str
    version: int
    made_at: datetime
    limit_days: float


@dataclass(frozen=True, slots=True)
class ModelData:
    """The data behind a protected alias of which something was found. `news`: by data set."""

    team: str
    model: str
    alias: str
    news: Mapping[str, DataNews] = field(default_factory=dict)
    aged: Aged | None = None


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert that holds, or held until `resolved_at`."""

    text: AlertText
    silence: int | None = None
    targets: tuple[str, ...] = ()
    resolved_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Silence:
    """A silence that holds."""

    scope: SilenceScope
    until: datetime
    comment: str
    user: str
    begun_at: datetime
    request_id: str
    request_source: str


@dataclass(frozen=True, slots=True)
class Group:
    """News for one receiver about one rule and team."""

    since: datetime
    raised: tuple[AlertText, ...] = ()
    resolved: tuple[AlertText, ...] = ()
    more: int = 0


@dataclass(frozen=True, slots=True)
class Delivery:
    """A notification that is not delivered yet."""

    due: NotificationDue
    next_at: datetime
    tries: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Sent:
    """A notification that was delivered, or given up; the log has its full text.

    `about`: the job or rule; `alerts`: how many alerts it had.
    """

    notification: str
    target: str
    team: str
    about: str
    alerts: int
    due_at: datetime
    tries: int
    outcome: Literal["delivered", "failed"]
    at: datetime
    text: str


@dataclass(frozen=True, slots=True)
class Deliver:
    """The effect: send this notification."""

    due: NotificationDue


@dataclass(frozen=True, slots=True)
class Delivered:
    """The outcome of an effect: the receiver took it after `took_s`."""

    took_s: float
    answer: str


@dataclass(frozen=True, slots=True)
class Undelivered:
    """The outcome of an effect: the receiver did not take it. `final`: nor will it later."""

    reason: str
    final: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """The value of one level of a rule for one subject, and whether its condition holds.

    `since`: an alert that was raised earlier is about something else, and over.
    """

    rule: AlertRule
    subject: str
    team: str
    severity: Severity
    value: float
    threshold: float
    holds: bool
    message: str
    cause: Cause | None = None
    level: str = ""
    since: datetime | None = None

    @property
    def key(self) -> str:
        """Equal for the same rule, level and subject."""
        return alert_key(self.rule, self.level, self.team, self.subject)


def alert_key(rule: AlertRule, level: str, team: str, subject: str) -> str:
    """The key of an alert in the state. A job may be named like the cluster."""
    own = f"{rule.value}/{team}/{subject}"
    return f"{own}/{level}" if level else own


@dataclass(frozen=True, slots=True)
class RunReading:
    """The newest progress of a run. None: not reported."""

    at: datetime
    attempt: int
    mfu: float | None = None
    step_s: float | None = None
    busy_s: float | None = None
    data_wait_share: float | None = None
    stalled: bool = False


@dataclass(frozen=True, slots=True)
class NodeReading:
    """The newest heartbeat of a node.

    Of its GPUs by index, from 0 to 1:
    - `busy`: the share of time in which a program ran on it.
    - `sm`: the mean share of its multiprocessors that were busy, where it can be measured.
    """

    at: datetime
    busy: Mapping[int, float]
    sm: Mapping[int, float]
    cpu_percent: float | None

    def activity(self, index: int) -> float | None:
        """The activity of a GPU; None: it is not known."""
        return self.sm.get(index, self.busy.get(index))


@dataclass(frozen=True, slots=True)
class Behind:
    """Old input without a pause in which rules could be judged: the first time, and the last."""

    since: datetime
    last: datetime
    topic: str
    age_s: float


@dataclass(slots=True)
class Watch:
    """The soft state: measurements since this process took over. Lost with it.

    - `began`: the first Tick; `now`: the last. `behind`: old input, while nothing is judged for it.
    - `findings`: the measured ones at the last Tick.
    - `holding`, `clear`: since when the condition of a measured finding holds, or does not.
    - `scheduler_away`: since when the scheduler is away. `absence`: since when it was, until now,
      if that is not in the log yet.
    - `saved`, `unsaved`: saves that are not counted yet, up to `counted` in each partition.
    """

    began: datetime | None = None
    now: datetime | None = None
    behind: Behind | None = None
    runs: dict[str, RunReading] = field(default_factory=dict)
    nodes: dict[str, NodeReading] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    holding: dict[str, datetime] = field(default_factory=dict)
    clear: dict[str, datetime] = field(default_factory=dict)
    scheduler_away: datetime | None = None
    absence: datetime | None = None
    saved: int = 0
    unsaved: int = 0
    counted: dict[int, int] = field(default_factory=dict)
    counted_at: datetime | None = None
