"""The results of jobs: logs, decisions, checkpoints."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from gangline.sdk.answers import parse, path_id
from gangline.sdk.calls import Calls
from gangline.transport import Params
from gangline_schemas.api.checkpoints import Checkpoint, CheckpointList
from gangline_schemas.api.jobs import Job, RankList, RankRow
from gangline_schemas.api.logs import BusEvent, EventPage, LogLine, LogPage
from gangline_schemas.api.runs import Restored

LINES = 1000


class Results(Calls):
    """The results of jobs: logs, decisions, checkpoints."""

    def logs(
        self,
        job_id: str,
        *,
        rank: int | None = None,
        attempt: int | None = None,
        contains: str = "",
        errors: bool = False,
        tail: int | None = None,
        follow: bool = False,
    ) -> Iterator[LogLine]:
        """Lines of all ranks, or of one; with `tail` the last ones; `follow`: until it ends.

        `contains`: only lines with this text, in any case; `errors`: only those that look like
        errors.
        """
        path = f"/v1/training-jobs/{path_id(job_id)}/logs"
        params: dict[str, Any] = {"rank": rank, "attempt": attempt, "tail": tail}
        params |= {"contains": contains or None, "errors": errors or None}
        if follow:
            yield from self._new_lines(path, {**params, "follow": "true"})
            return
        params["limit"] = LINES
        while True:
            page = self._read(LogPage, "GET", path, params=params)
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

    def ranks(self, job_id: str, *, lines: bool = True) -> Iterator[RankRow]:
        """Each rank of a running gang, in order; `lines`: with the last line of its log."""
        path = f"/v1/training-jobs/{path_id(job_id)}/ranks"
        params: dict[str, Any] = {"lines": lines, "limit": LINES}
        while True:
            page = self._read(RankList, "GET", path, params=params)
            yield from page.ranks
            if page.cursor is None:
                return
            params["cursor"] = page.cursor

    def job_events(self, job_id: str, *, follow: bool = False) -> Iterator[BusEvent]:
        """All decisions about a job; with `follow` until it ends."""
        path = f"/v1/training-jobs/{path_id(job_id)}/events"
        if follow:
            for event in self._transport.events(path, {"follow": "true"}):
                yield parse(BusEvent, event.data)
            return
        params: dict[str, Any] = {"limit": 1000}
        while True:
            page = self._read(EventPage, "GET", path, params=params)
            yield from page.events
            if len(page.events) < params["limit"]:
                return
            params["cursor"] = page.cursor

    def checkpoints(self, job_id: str) -> Sequence[Checkpoint]:
        """A job's checkpoints, newest first."""
        return self.checkpoint_list(job_id).checkpoints

    def checkpoint_list(self, job_id: str) -> CheckpointList:
        """A job's checkpoints, newest first, read page by page, and the advised interval."""
        path = f"/v1/training-jobs/{path_id(job_id)}/checkpoints"
        return self._whole(CheckpointList, path, "checkpoints")

    def pin(self, job_id: str, step: int, *, pinned: bool = True) -> Checkpoint:
        """Keep a step's checkpoint whatever the job's retention says, or no longer."""
        path = f"/v1/training-jobs/{path_id(job_id)}/checkpoints/{step}/pin"
        return self._read(Checkpoint, "POST", path, body={"pinned": pinned}, repeatable=True)

    def promote(self, job_id: str, step: int) -> Job:
        """Have a step's checkpoint validated; gives the run that does it."""
        path = f"/v1/training-jobs/{path_id(job_id)}/checkpoints/{step}/promote"
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        return self._read(Job, "POST", path, headers=headers, repeatable=True)

    def restore(self, job_id: str, step: int) -> Restored:
        """Resume from a step's committed checkpoint: the same run, or a new one if it has ended."""
        path = f"/training-runs/{path_id(job_id)}/checkpoints/{step}/restore"
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        return self._read(Restored, "POST", path, headers=headers, repeatable=True)
