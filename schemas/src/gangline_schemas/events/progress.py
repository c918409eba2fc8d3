"""gangline.progress: how far each run is, at most once a second. The live view writes it."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gangline_schemas.base import Event, Identifier, Timestamp
from gangline_schemas.limits import Amount, Attempt, Metrics, Rank, Seconds, Step, UnixMs


def progress_key(team: str, run_id: str) -> str:
    """The key of a run's records: a writer of steps may name the run of another team."""
    return f"{team}/{run_id}"


class RunProgress(Event):
    """The newest step of a run, as its lowest reporting rank reports it.

    `attempt` and, within it, `step` never fall. Means are over the last 30 seconds of steps.
    """

    type: ClassVar[str] = "run.progress"
    run_id: Identifier
    team: Identifier
    attempt: Attempt
    rank: Rank
    step: Step
    time_ms: UnixMs = Field(description="Unix time of the step's end, by the clock of its node.")
    metrics: Metrics = Field(description="The newest value of each metric of the attempt.")
    step_s: Seconds | None = Field(default=None, description="Seconds a step; None: not known yet.")
    tokens_per_s: Amount | None = Field(
        default=None, description="The mean of the metric of that name; None: it is not reported."
    )
    data_wait_share: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None,
        description="The share of the steps' time that went into waiting for data (the metrics "
        "data_wait_s and step_s); None: they are not reported.",
    )
    stalled_since: Timestamp | None = Field(
        default=None,
        description="No step was reported since then, for much longer than a step takes. The run "
        "may also have ended or wait for GPUs: the job's state tells. None: steps come.",
    )
