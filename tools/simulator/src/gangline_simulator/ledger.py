"""The record of a replay: each job's times, and the pool's GPUs in use at each moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gangline_schemas.events.scheduling import GangAllocated, GangReleased, ReleaseReason
from gangline_simulator.cluster import Pool
from gangline_simulator.running import Running
from gangline_simulator.trace import TraceJob


@dataclass(frozen=True, slots=True)
class Outcome:
    """One job that ended. `allocated_s`: how long it had its GPUs; else it waited."""

    job: TraceJob
    end_s: float
    allocated_s: float
    preemptions: int
    lost_s: float

    @property
    def jct_s(self) -> float:
        """From submission to end."""
        return self.end_s - self.job.submit_s

    @property
    def wait_s(self) -> float:
        """How long it waited in all."""
        return self.jct_s - self.allocated_s


@dataclass(frozen=True, slots=True)
class Sample:
    """From this moment on: GPUs allocated, jobs that wait, free GPUs of partly used nodes."""

    at_s: float
    allocated_gpus: int
    waiting: int
    split_gpus: int


@dataclass(frozen=True, slots=True)
class PoolResult:
    """One pool's replay."""

    gpus: int
    outcomes: tuple[Outcome, ...]
    samples: tuple[Sample, ...]


@dataclass(slots=True)
class _Account:
    since_s: float = 0.0
    allocated_s: float = 0.0
    preemptions: int = 0
    lost_s: float = 0.0


class Ledger:
    """Written by the driver."""

    def __init__(self, pool: Pool, jobs: Mapping[str, TraceJob]) -> None:
        self._jobs = jobs
        self._gpus = pool.gpus
        self._sizes = {node.node_id: len(node.gpus) for node in pool.nodes}
        self._free = dict(self._sizes)
        self._accounts: dict[str, _Account] = {}
        self._outcomes: list[Outcome] = []
        self._samples: list[Sample] = []
        self._allocated = 0
        self._split = 0
        self.waiting = 0

    @property
    def ended(self) -> int:
        """Jobs that ended."""
        return len(self._outcomes)

    def arrived(self, job_id: str) -> None:
        """A job was admitted."""
        self._accounts[job_id] = _Account()
        self.waiting += 1

    def allocated(self, event: GangAllocated, now_s: float) -> None:
        """A gang has its GPUs."""
        self._accounts[event.job_id].since_s = now_s
        self.waiting -= 1
        for part in event.nodes:
            self._take(part.node_id, len(part.gpus))

    def released(self, event: GangReleased, now_s: float, run: Running) -> None:
        """A gang gave them back; its job has ended, or waits again."""
        account = self._accounts[event.job_id]
        account.allocated_s += now_s - account.since_s
        account.lost_s += run.lost_s
        for _, node_id in run.ranks:
            self._take(node_id, -1)
        if event.reason is ReleaseReason.SUCCEEDED:
            del self._accounts[event.job_id]
            self._outcomes.append(
                Outcome(
                    self._jobs[event.job_id],
                    now_s,
                    account.allocated_s,
                    account.preemptions,
                    account.lost_s,
                )
            )
            return
        self.waiting += 1
        account.preemptions += 1
        stopped_s = now_s if run.stopped_s is None else run.stopped_s
        account.lost_s += now_s - stopped_s + run.restart_s

    def sample(self, now_s: float) -> None:
        """Note what is allocated now, if that changed."""
        sample = Sample(now_s, self._allocated, self.waiting, self._split)
        if self._samples and self._samples[-1].at_s == now_s:
            self._samples.pop()
        last = self._samples[-1] if self._samples else None
        if last is None or (last.allocated_gpus, last.waiting, last.split_gpus) != (
            sample.allocated_gpus,
            sample.waiting,
            sample.split_gpus,
        ):
            self._samples.append(sample)

    def result(self, now_s: float) -> PoolResult:
        """All of it. The last sample is at the end."""
        self._samples.append(Sample(now_s, self._allocated, self.waiting, self._split))
        return PoolResult(self._gpus, tuple(self._outcomes), tuple(self._samples))

    def _take(self, node_id: str, gpus: int) -> None:
        size, free = self._sizes[node_id], self._free[node_id]
        self._split -= free if free < size else 0
        free -= gpus
        self._split += free if free < size else 0
        self._free[node_id] = free
        self._allocated += gpus
