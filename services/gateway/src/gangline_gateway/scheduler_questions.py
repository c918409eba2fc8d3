"""Explain, what-if and the queue's outlook: runs the scheduler's pure code on a copy of its state.

The gateway folds the state from the scheduler's log (scheduling.py), so questions do not load the
scheduler. A child process of low priority answers, within `WORK_S`. At most `AT_ONCE` run at a
time, and further ones wait up to `WAIT_S`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime

import structlog

from gangline_gateway.followed import NoStateError
from gangline_gateway.scheduling import Shard, shards
from gangline_gateway.tail import Tail
from gangline_gateway.user_limits import SharedSlots
from gangline_scheduler.core import questions
from gangline_scheduler.core.outlook import outlook
from gangline_schemas.api.questions import JobExplained, QueueOutlook, WhatIfAnswer
from gangline_schemas.job import JobSpec
from gangline_service.apart import TookTooLong, WorkFailed, apart

log = structlog.get_logger(__name__)

WORK_S = 2.0
WAIT_S = 1.0
AT_ONCE = 2
WAITING, PER_USER = 8, 4
KEPT_S = 2.0
"""The outlook of the queue is the same for all callers, so it is kept for so long."""


class NoAnswerError(Exception):
    """No answer is possible now; the message says why."""


class SchedulerQuestions:
    """May be used from any thread."""

    def __init__(self, tail: Tail, *, work_s: float = WORK_S, wait_s: float = WAIT_S) -> None:
        self._tail = tail
        self._work_s = work_s
        self._wait_s = wait_s
        self._slots = threading.BoundedSemaphore(AT_ONCE)
        self._outlooking = threading.Lock()
        self._waiting = SharedSlots(WAITING, PER_USER, "outlooks")
        self._outlook: QueueOutlook | None = None

    def explain(self, job_id: str, now: datetime) -> JobExplained | None:
        """Why a job waits; None if no such job waits. Raises NoAnswerError."""
        found = next((each for each in self._shards() if each.state.is_pending(job_id)), None)
        if found is None:
            return None
        shard = found

        def work() -> bytes:
            answer = questions.explain(shard.state, job_id, now, shard.policy)
            return b"" if answer is None else answer.encode()

        answer = self._apart(work)
        return JobExplained.decode(answer) if answer else None

    def what_if(self, spec: JobSpec, now: datetime) -> WhatIfAnswer:
        """When the job would start, in the shard where it starts first. Raises NoAnswerError."""
        asked = self._shards()

        def work() -> bytes:
            answers = (questions.what_if(each.state, spec, now, each.policy) for each in asked)
            return min(answers, key=_start).encode()

        return WhatIfAnswer.decode(self._apart(work))

    def outlook(self, now: datetime) -> QueueOutlook:
        """The outlook of all queues, at most `KEPT_S` old. Raises NoAnswerError and problems."""
        kept = self._kept(now)
        if kept is not None:
            return kept
        with self._waiting.hold():
            if not self._outlooking.acquire(timeout=self._work_s + self._wait_s):
                raise NoAnswerError("the outlook is being made; try again")
            try:
                found = self._outlook = self._kept(now) or self._new_outlook(now)
                return found
            finally:
                self._outlooking.release()

    def _kept(self, now: datetime) -> QueueOutlook | None:
        kept = self._outlook
        fresh = kept is not None and 0 <= (now - kept.as_of).total_seconds() < KEPT_S
        return kept if fresh else None

    def _new_outlook(self, now: datetime) -> QueueOutlook:
        asked = self._shards()

        def work() -> bytes:
            found = [outlook(each.state, now, each.policy, at) for at, each in enumerate(asked)]
            return QueueOutlook(as_of=now, shards=found).model_dump_json().encode()

        return QueueOutlook.model_validate_json(self._apart(work))

    def _shards(self) -> Sequence[Shard]:
        try:
            return shards(self._tail.view().scheduling)
        except NoStateError as error:
            raise NoAnswerError(str(error)) from None

    def _apart(self, work: Callable[[], bytes]) -> bytes:
        if not self._slots.acquire(timeout=self._wait_s):
            raise NoAnswerError(f"{AT_ONCE} questions are being answered; try again")
        try:
            return apart(work, self._work_s)
        except TookTooLong as error:
            raise NoAnswerError(str(error)) from None
        except WorkFailed as error:
            log.exception("a question failed", error=str(error))
            raise NoAnswerError(
                "the question failed; an operator finds the error in the gateway's log"
            ) from None
        finally:
            self._slots.release()


def _start(answer: WhatIfAnswer) -> tuple[bool, float]:
    return answer.start is None, 0.0 if answer.start is None else answer.start.timestamp()
