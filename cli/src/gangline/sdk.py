"""The Python SDK: one method per thing that a user asks of the platform.

Every method raises CliError (`message`, `hint`, `code`) when the platform refuses or is away.
"""

from __future__ import annotations

import copy
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from gangline.answers import pages, parse, path_id, read, steps_of, topic_name
from gangline.connection import find_gateway
from gangline.errors import CliError, ExitCode
from gangline.job_file import Bundle, JobFile, apply_overrides, check_spec, read_job_file
from gangline.transport import HTML, Params, Transport
from gangline_schemas.api.checkpoints import Checkpoint, CheckpointList
from gangline_schemas.api.cluster import (
    Drained,
    Node,
    NodeList,
    Queue,
    Team,
    TeamList,
    Version,
    Whoami,
)
from gangline_schemas.api.data import Approval, ApprovalList, DataUseStatus
from gangline_schemas.api.incidents import Incident, IncidentDetail, IncidentPage
from gangline_schemas.api.jobs import BundleStored, DryRun, Job, JobPage, JobSummary
from gangline_schemas.api.logs import BusEvent, EventPage, LogLine, LogPage
from gangline_schemas.api.questions import Explanation, WhatIf
from gangline_schemas.api.reports import UtilizationReport, WeeklyReport
from gangline_schemas.api.runs import Comparison, Curve, Curves, Restored, Run, RunPage, StepMetrics
from gangline_schemas.job import JobSpec
from gangline_schemas.team_limits import GpuTypeLimit

LINES = 1000
FIRST_POLL_S, LONGEST_POLL_S = 0.2, 2.0

Submission = JobFile | JobSpec | Mapping[str, Any] | Path | str


def connect(
    url: str | None = None,
    token: str | None = None,
    data_dir: Path | str | None = None,
    *,
    notice: Callable[[str], None] = lambda _: None,
) -> Gangline:
    """A client of the platform at `url`, or of the one that was last up on this machine.

    The defaults are GANGLINE_URL and GANGLINE_TOKEN, then those in the data directory.
    `notice` is called with one line for each retry. Raises CliError when no platform is known.
    """
    folder = Path(data_dir) if data_dir is not None else None
    return Gangline(find_gateway(url, token, folder, notice=notice))


class Gangline:
    """A client of one gateway. Use it as a context manager, or call `close`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __enter__(self) -> Self:
        """Nothing is sent before the first question."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    @property
    def url(self) -> str:
        """The gateway's URL."""
        return self._transport.url

    # Jobs

    def submit(
        self,
        job: Submission,
        idempotency_key: str | None = None,
        *,
        overrides: Mapping[str, Any] | None = None,
    ) -> Job:
        """Submit a spec, a mapping of its fields or a job file; uploads its workdir first.

        The same key again gives the same job. Without one, each call is a new job.
        """
        file = read_submission(job, overrides)
        if file.bundle is not None:
            self.upload(file.bundle, file.spec.team)
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        answer = self._call(
            "POST", "/v1/training-jobs", body=file.spec.data(), headers=headers, repeatable=True
        )
        return read(Job, answer)

    def dry_run(self, job: Submission, *, overrides: Mapping[str, Any] | None = None) -> DryRun:
        """Check a job as `submit` does; nothing is uploaded or started."""
        file = read_submission(job, overrides)
        answer = self._call(
            "POST",
            "/v1/training-jobs",
            params={"dry_run": "true"},
            body=file.spec.data(),
            repeatable=True,
        )
        return read(DryRun, answer)

    def upload(self, bundle: Bundle, team: str) -> BundleStored:
        """Store a packed workdir; one that is there already is not changed."""
        answer = self._call(
            "POST",
            "/v1/code-bundles",
            params={"team": team},
            content=bundle.data,
            headers={"Content-Type": "application/gzip"},
            repeatable=True,
        )
        return read(BundleStored, answer)

    def get(self, job_id: str) -> Job:
        """One job."""
        return read(Job, self._call("GET", f"/v1/training-jobs/{path_id(job_id)}"))

    def list(
        self,
        *,
        states: Sequence[str] = (),
        team: str | None = None,
        user: str | None = None,
        name: str | None = None,
        limit: int | None = None,
    ) -> Iterator[JobSummary]:
        """Jobs, newest first, read page by page; at most `limit`."""
        wanted = {"state": [*states] or None, "team": team, "user": user, "name": name}

        def ask(place: dict[str, Any]) -> tuple[Sequence[JobSummary], str | None]:
            answer = self._call("GET", "/v1/training-jobs", params=wanted | place)
            page = read(JobPage, answer)
            return page.jobs, page.cursor

        return pages(ask, limit)

    def explain(self, job_id: str) -> Explanation:
        """Why the job is where it is."""
        return read(Explanation, self._call("GET", f"/v1/training-jobs/{path_id(job_id)}/explain"))

    def what_if(self, job: Submission, *, overrides: Mapping[str, Any] | None = None) -> WhatIf:
        """When and where the job would start now, whom it would preempt; nothing changes."""
        file = read_submission(job, overrides)
        return read(WhatIf, self._call("POST", "/v1/what-if", body=file.spec.data()))

    def cancel(self, job_id: str) -> Job:
        """End a job; its gang saves first if it can."""
        path = f"/v1/training-jobs/{path_id(job_id)}/cancel"
        return read(Job, self._call("POST", path, repeatable=True))

    def set_priority(self, job_id: str, priority: int) -> Job:
        """Change a job's priority: 0 (highest) to 100."""
        path = f"/v1/training-jobs/{path_id(job_id)}/priority"
        body = {"priority": priority}
        return read(Job, self._call("POST", path, body=body, repeatable=True))

    def wait(
        self,
        job_id: str,
        timeout_s: float | None = None,
        *,
        on_change: Callable[[Job], None] = lambda _: None,
    ) -> Job:
        """Wait for a job's end. Raises CliError with code NOT_FINISHED after `timeout_s`."""
        ends = None if timeout_s is None else time.monotonic() + timeout_s
        delay_s, seen = FIRST_POLL_S, ""
        while True:
            job = self.get(job_id)
            if job.state != seen:
                seen, delay_s = job.state, FIRST_POLL_S
                on_change(job)
            if job.ended:
                return job
            if ends is not None and time.monotonic() >= ends:
                raise CliError(
                    f"{job_id} is {job.state} after {timeout_s:g} s; it continues",
                    f"wait again with: gangline watch {job_id}",
                    ExitCode.NOT_FINISHED,
                )
            time.sleep(delay_s if ends is None else min(delay_s, max(0.0, ends - time.monotonic())))
            delay_s = min(LONGEST_POLL_S, delay_s * 1.5)

    # Results of jobs
    def logs(
        self,
        job_id: str,
        *,
        rank: int | None = None,
        attempt: int | None = None,
        tail: int | None = None,
        follow: bool = False,
    ) -> Iterator[LogLine]:
        """Lines of all ranks, or of one; with `tail` the last ones; `follow`: until it ends."""
        path = f"/v1/training-jobs/{path_id(job_id)}/logs"
        params: dict[str, Any] = {"rank": rank, "attempt": attempt, "tail": tail}
        if follow:
            yield from self._new_lines(path, {**params, "follow": "true"})
            return
        params["limit"] = LINES
        while True:
            page = read(LogPage, self._call("GET", path, params=params))
            yield from page.lines
            if tail is not None or len(page.lines) < LINES:
                return
            params["cursor"] = page.cursor

    def _new_lines(self, path: str, params: Params) -> Iterator[LogLine]:
        """Each line once: what was sent after the last cursor comes again on a new connection."""
        seen: dict[tuple[int, int], int] = {}
        for event in self._transport.events(path, params):
            if event.event != "log":
                continue
            line = parse(LogLine, event.data)
            key = (line.attempt, line.rank)
            if line.line > seen.get(key, -1):
                seen[key] = line.line
                yield line

    def checkpoints(self, job_id: str) -> Sequence[Checkpoint]:
        """A job's checkpoints, newest first."""
        return self.checkpoint_list(job_id).checkpoints

    def checkpoint_list(self, job_id: str) -> CheckpointList:
        """A job's checkpoints, newest first, read page by page, and the advised interval."""
        path = f"/v1/training-jobs/{path_id(job_id)}/checkpoints"
        first = page = read(CheckpointList, self._call("GET", path))
        found = list(first.checkpoints)
        while page.cursor is not None:
            params: dict[str, Any] = {"cursor": page.cursor}
            page = read(CheckpointList, self._call("GET", path, params=params))
            found += page.checkpoints
        return first.model_copy(update={"checkpoints": found, "cursor": None})

    def pin(self, job_id: str, step: int, *, pinned: bool = True) -> Checkpoint:
        """Keep a step's checkpoint whatever the job's retention says, or no longer."""
        path = f"/v1/training-jobs/{path_id(job_id)}/checkpoints/{step}/pin"
        answer = self._call("POST", path, body={"pinned": pinned}, repeatable=True)
        return read(Checkpoint, answer)

    def promote(self, job_id: str, step: int) -> Job:
        """Have a step's checkpoint validated; gives the run that does it."""
        path = f"/v1/training-jobs/{path_id(job_id)}/checkpoints/{step}/promote"
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        return read(Job, self._call("POST", path, headers=headers, repeatable=True))

    def restore(self, job_id: str, step: int) -> Restored:
        """Resume from a step's committed checkpoint: the same run, or a new one if it has ended."""
        path = f"/training-runs/{path_id(job_id)}/checkpoints/{step}/restore"
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        return read(Restored, self._call("POST", path, headers=headers, repeatable=True))

    # Runs

    def runs(
        self, *, team: str | None = None, name: str | None = None, limit: int | None = None
    ) -> Iterator[Run]:
        """Runs of history, newest first, read page by page; at most `limit`."""
        wanted = {"team": team, "name": name}

        def ask(place: dict[str, Any]) -> tuple[Sequence[Run], str | None]:
            page = read(RunPage, self._call("GET", "/v1/runs", params=wanted | place))
            return page.runs, page.cursor

        return pages(ask, limit)

    def metrics(
        self, run_id: str, names: Sequence[str] = (), *, follow: bool = False
    ) -> Iterator[StepMetrics]:
        """A run's steps so far, thinned to about 1,000; with `follow` also each new one.

        A step may come twice; the later one counts.
        """
        path = f"/training-runs/{path_id(run_id)}/metrics"
        params: Params = {"name": [*names] or None}
        if not follow:
            curves = read(Curves, self._call("GET", path, params=params)).curves
            yield from steps_of(curves)
            return
        for event in self._transport.events(path, params):
            if event.event == "history":
                yield from steps_of(parse(Curves, event.data).curves)
            elif event.event == "step":
                yield parse(StepMetrics, event.data)

    def curves(self, run_id: str, names: Sequence[str] = (), points: int = 500) -> Sequence[Curve]:
        """Curves of a run's metrics (all: none named), thinned to about `points` points."""
        path = f"/v1/runs/{path_id(run_id)}/curves"
        params: Params = {"name": [*names] or None, "points": max(2, points)}
        return read(Curves, self._call("GET", path, params=params)).curves

    def compare(
        self, run_ids: Sequence[str], names: Sequence[str] = (), points: int = 200
    ) -> Comparison:
        """Configurations' differences, final metrics and curves of up to 20 runs side by side."""
        params: Params = {
            "run": [path_id(run_id) for run_id in run_ids],
            "name": [*names] or None,
            "points": max(2, points),
        }
        return read(Comparison, self._call("GET", "/v1/runs/compare", params=params))

    def incidents(
        self,
        job_id: str | None = None,
        *,
        team: str | None = None,
        node: str | None = None,
        since: datetime | None = None,
        limit: int | None = None,
    ) -> IncidentPage:
        """The newest `limit` failures (None: all), of one job or of all, and the totals of all.

        `notices` are the newest observations of gangs that kept running.
        """
        wanted = {
            "job": None if job_id is None else path_id(job_id),
            "team": team,
            "node": None if node is None else path_id(node),
            "since": since.isoformat() if since else None,
        }
        read_pages: list[IncidentPage] = []

        def ask(place: dict[str, Any]) -> tuple[Sequence[Incident], str | None]:
            page = read(IncidentPage, self._call("GET", "/v1/incidents", params=wanted | place))
            read_pages.append(page)
            return page.incidents, page.cursor

        found = [*pages(ask, limit)]
        if not read_pages:  # none are wanted: the totals alone
            ask({"limit": 1, "cursor": None})
        return read_pages[0].model_copy(update={"incidents": found, "cursor": None})

    def incident(self, job_id: str, attempt: int) -> IncidentDetail:
        """The failure of one attempt, and what its ranks were doing if it hung."""
        path = f"/v1/incidents/{path_id(job_id)}/{attempt}"
        return read(IncidentDetail, self._call("GET", path))

    # Reports

    def report_utilization(
        self, since: datetime | None = None, until: datetime | None = None
    ) -> UtilizationReport:
        """Each team's use of the GPUs and its waits; by default of the last 24 hours."""
        answer = self._call("GET", "/v1/reports/utilization", params=_span(since, until))
        return read(UtilizationReport, answer)

    def report_weekly(self, week: str | None = None) -> WeeklyReport:
        """How a week (2026-W47; else the last 7 days) went, and the one before."""
        answer = self._call("GET", "/v1/reports/weekly", params={"week": week})
        return read(WeeklyReport, answer)

    def report_page(
        self,
        name: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        week: str | None = None,
    ) -> str:
        """The same reports, by name (utilization, weekly), as a page of HTML."""
        params = {**_span(since, until), "week": week}
        path = f"/v1/reports/{path_id(name)}"
        page: str = self._call("GET", path, params=params, headers={"Accept": HTML})
        return page

    # The cluster

    def teams(self) -> Sequence[Team]:
        """Teams that the token sees."""
        return read(TeamList, self._call("GET", "/v1/teams")).teams

    def configure_team(
        self,
        team: str,
        *,
        gpu_limit: int,
        gpu_guarantee: int = 0,
        borrow_limit: int = 0,
        parent: str | None = None,
        weight: float = 1.0,
        surplus: str | None = None,
        gpu_types: Sequence[GpuTypeLimit] = (),
        gpu_hours_per_month: float | None = None,
        job_limit: int = 10_000,
    ) -> Team:
        """Create a team, or change all its limits: what is not given is set to its default."""
        body = {
            "gpu_limit": gpu_limit,
            "gpu_guarantee": gpu_guarantee,
            "borrow_limit": borrow_limit,
            "parent": parent,
            "weight": weight,
            "surplus": surplus,
            "gpu_types": [item.model_dump() for item in gpu_types],
            "gpu_hours_per_month": gpu_hours_per_month,
            "job_limit": job_limit,
        }
        return read(Team, self._call("PUT", f"/v1/teams/{path_id(team)}", body=body))

    def approve_data(
        self, snapshot: str, project: str, purpose: str, *, approve: bool = True
    ) -> DataUseStatus:
        """Let a project's jobs use a snapshot for a purpose, or no longer; needs an admin."""
        body = {"snapshot": snapshot, "project": project, "purpose": purpose, "approve": approve}
        answer = self._call("POST", "/v1/data-approvals", body=body, repeatable=True)
        return read(DataUseStatus, answer)

    def data_approvals(self, snapshot: str | None = None) -> Sequence[Approval]:
        """Uses of data that hold, of one snapshot or of all; needs an admin."""
        answer = self._call("GET", "/v1/data-approvals", params={"snapshot": snapshot})
        return read(ApprovalList, answer).approvals

    def nodes(self) -> Sequence[Node]:
        """All nodes, by id, read page by page."""

        def ask(place: dict[str, Any]) -> tuple[Sequence[Node], str | None]:
            page = read(NodeList, self._call("GET", "/v1/nodes", params=place))
            return page.nodes, page.cursor

        return [*pages(ask, None)]

    def drain(self, node_id: str, *, drain: bool = True, move_jobs: bool = True) -> Drained:
        """Keep gangs off a node, or let them there again.

        Gangs there save and resume on other nodes; without `move_jobs` they keep running.
        """
        path = f"/v1/nodes/{path_id(node_id)}/drain"
        body = {"drain": drain} if move_jobs else {"drain": drain, "move_jobs": False}
        return read(Drained, self._call("POST", path, body=body, repeatable=True))

    def queue(self) -> Queue:
        """Pending jobs in the order in which they start."""
        found = page = read(Queue, self._call("GET", "/v1/queue"))
        entries = [*page.queue]
        while page.cursor is not None and page.queue:
            params = {"cursor": page.cursor}
            page = read(Queue, self._call("GET", "/v1/queue", params=params))
            entries += page.queue
        return found.model_copy(update={"queue": entries, "cursor": None})

    def events(
        self,
        topics: Sequence[str] = (),
        *,
        follow: bool = False,
        from_start: bool = False,
        limit: int = 100,
    ) -> Iterator[BusEvent]:
        """The newest `limit` events of topics (none named: all but heartbeats); needs an admin.

        `follow` gives those that come instead, for ever; with `from_start` after all old ones.
        """
        params: dict[str, Any] = {"topic": [topic_name(name) for name in topics] or None}
        if follow:
            params |= {"follow": "true", "from": "start" if from_start else "end"}
            for event in self._transport.events("/v1/events", params):
                yield parse(BusEvent, event.data)
            return
        params["limit"] = limit
        yield from read(EventPage, self._call("GET", "/v1/events", params=params)).events

    def job_events(self, job_id: str, *, follow: bool = False) -> Iterator[BusEvent]:
        """All decisions about a job; with `follow` until it ends."""
        path = f"/v1/training-jobs/{path_id(job_id)}/events"
        if follow:
            for event in self._transport.events(path, {"follow": "true"}):
                yield parse(BusEvent, event.data)
            return
        params: dict[str, Any] = {"limit": 1000}
        while True:
            page = read(EventPage, self._call("GET", path, params=params))
            yield from page.events
            if len(page.events) < params["limit"]:
                return
            params["cursor"] = page.cursor

    def whoami(self) -> Whoami:
        """Whose token this is."""
        return read(Whoami, self._call("GET", "/v1/whoami"))

    def version(self) -> Version:
        """The versions of the gateway and of its API."""
        return read(Version, self._call("GET", "/v1/version"))

    def _call(self, method: str, path: str, **options: Any) -> Any:
        return self._transport.call(method, path, **options)


def _span(since: datetime | None, until: datetime | None) -> dict[str, str | None]:
    return {
        "from": since.isoformat() if since else None,
        "to": until.isoformat() if until else None,
    }


def read_submission(job: Submission, overrides: Mapping[str, Any] | None = None) -> JobFile:
    """Any form of a submission as a checked spec and its bundle. Raises CliError."""
    if isinstance(job, JobFile):
        return job
    if isinstance(job, (str, Path)):
        return read_job_file(Path(job), overrides)
    content = job.data() if isinstance(job, JobSpec) else copy.deepcopy(dict(job))
    apply_overrides(content, overrides or {})
    return JobFile(check_spec(content, "the spec"), None)
