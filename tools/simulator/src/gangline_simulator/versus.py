"""A log beside what other policies would have made of it: all that `replay --policy` shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.policy.configured import Limits
from gangline_simulator.compare import SHOWN, Difference, Figures, differences, figures
from gangline_simulator.history import History, Logged, read_history
from gangline_simulator.live_policies import RECORDED, live_policy
from gangline_simulator.recorded import ACCEPTED, read_recording
from gangline_simulator.rerun import Rerun, tick_every_s

Report = Callable[[str, float], None]
"""Gets the policy, and the share of its time that is done."""


class NoJobsError(Exception):
    """No job was submitted in the range."""


@dataclass(frozen=True, slots=True)
class Unended:
    """A job that had not ended in the log. `allocated_gpus`: what it had then; 0: it waited."""

    job_id: str
    team: str
    gpus: int
    allocated_gpus: int
    attempts: int


@dataclass(frozen=True, slots=True)
class Versus:
    """The columns, `recorded` first, and by policy whose start differs, the most first."""

    since: datetime
    end: datetime
    tick_s: float
    histories: Mapping[str, History]
    columns: tuple[Figures, ...]
    differences: Mapping[str, tuple[Difference, ...]]
    unended: tuple[Unended, ...]

    def data(self) -> dict[str, Any]:
        """As plain JSON: all figures, and the first differences of each policy."""
        return {
            "from": self.since.isoformat(),
            "until": self.end.isoformat(),
            "tick_s": self.tick_s,
            "policies": [column.data() for column in self.columns],
            "differences": {
                name: {"jobs": len(found), "most": [entry.data() for entry in found[:SHOWN]]}
                for name, found in self.differences.items()
            },
            "not_ended": [
                {name: getattr(job, name) for name in Unended.__slots__} for job in self.unended
            ],
        }


def versus(
    log: Sequence[Logged],
    names: Sequence[str],
    *,
    since: datetime | None = None,
    end: datetime | None = None,
    progress: Report | None = None,
) -> Versus:
    """Run a log through policies that are named (live_policies.py).

    The whole log is run, so that `since` begins with what was there; the figures are over jobs
    that were queued since then. Raises NoJobsError, and ValueError for a policy that is not known
    or an empty log.
    """
    policies = {name: live_policy(name) for name in names}
    recording = read_recording(log, end)
    real = recording.history
    wanted = [
        job_id
        for job_id in recording.needs
        if since is None or real.jobs[job_id].queued_at >= since
    ]
    if not wanted:
        raise NoJobsError
    histories = {RECORDED: real}
    for name, policy in policies.items():

        def share(done: float, name: str = name) -> None:
            if progress is not None:
                progress(name, done)

        rerun = Rerun(recording, Scheduler(Limits(oldest_agents=ACCEPTED), policy))
        histories[name] = read_history(rerun.run(share), recording.end)
    return Versus(
        since=since or recording.start,
        end=recording.end,
        tick_s=tick_every_s(recording),
        histories=histories,
        columns=tuple(figures(histories, wanted)),
        differences={name: tuple(differences(real, histories[name], wanted)) for name in policies},
        unended=_unended(real, wanted),
    )


def _unended(real: History, wanted: Sequence[str]) -> tuple[Unended, ...]:
    found = [job for job_id in wanted if (job := real.jobs[job_id]).ended_at is None]
    return tuple(
        Unended(
            job.job_id,
            job.spec.team,
            job.gpus,
            sum(attempt.gpus for attempt in job.attempts if attempt.released_at is None),
            len(job.attempts),
        )
        for job in found
    )
