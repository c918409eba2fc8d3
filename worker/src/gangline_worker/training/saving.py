"""When the trainer saves, and what becomes of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from pydantic import JsonValue
from torch import Tensor
from torch.distributed.tensor import DTensor

from gangline_worker.checkpoint.public import DIRECTORY_ENV, announcer, committed_step, identity
from gangline_worker.checkpoint.saver import AsyncSaver, SaveResult
from gangline_worker.loss_watch import NotFiniteError
from gangline_worker.reporting import reporter
from gangline_worker.save_interval import SaveInterval, named_interval_s
from gangline_worker.training.config import TrainConfig
from gangline_worker.training.console import complain


class CheckpointSchedule:
    """Decides on rank 0 when the next save is due, and keeps a wish until it is met."""

    def __init__(
        self,
        config: TrainConfig,
        clock: Callable[[], float] = time.monotonic,
        changed_s: Callable[[], float | None] = lambda: reporter().interval_s,
    ) -> None:
        """The interval is the job's, when the agent names it, else that of the settings.

        `changed_s` gives another one once the agent has named it while the rank runs.
        """
        interval_s = named_interval_s() or config.checkpoint_interval_s
        self._interval = SaveInterval(interval_s, changed_s, clock)
        self._every_steps = config.checkpoint_every_steps
        self._requested = False
        self._put_off = False

    def request(self) -> None:
        """Save a checkpoint as soon as possible."""
        self._requested = True

    def wanted(self, step: int, rank: int) -> bool:
        """Whether this rank wants to save after `step`; the clock counts on rank 0 alone."""
        by_steps = self._every_steps > 0 and step % self._every_steps == 0
        return self._requested or by_steps or (rank == 0 and self._interval.passed())

    def put_off(self) -> bool:
        """One is wanted and cannot begin yet; whether that is news since the last."""
        news, self._put_off = not self._put_off, True
        return news

    def saved(self) -> None:
        """A save has begun."""
        self._requested = self._put_off = False
        self._interval.begin()


class Checkpointer:
    """The trainer's saver; without a checkpoint directory it does nothing."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """Plan and allocate now, so that the first save does not block training for it."""
        named = os.environ.get(DIRECTORY_ENV)
        self._tensors = tensors
        self._weights = local_weights(tensors)
        self._saver: AsyncSaver | None = None
        self.failures = 0
        self._failed_step: int | None = None  # the newest of them
        self.bad_weights = False  # a save found some that are not finite
        if named:
            directory = Path(named)
            self._saver = AsyncSaver(
                identity(directory), announcer(directory), committed_step, self._check_weights
            )
            self._saver.prepare(tensors)

    @property
    def enabled(self) -> bool:
        """Whether there is somewhere to save to."""
        return self._saver is not None

    @property
    def busy(self) -> bool:
        """Whether this rank still writes, or its agent has all the saves to store that may wait."""
        return self._saver is not None and (self._saver.busy or reporter().behind)

    def begin(
        self, step: int, state: Mapping[str, JsonValue], metrics: Mapping[str, float]
    ) -> None:
        """Start a save; the tensors must not change before `before_update`."""
        if self._saver is not None:
            self._saver.begin(step, self._tensors, state, metrics)

    def before_update(self) -> None:
        """Wait until the copy of a save that began is done: the weights change next."""
        if self._saver is not None:
            self._saver.wait_copied()

    def finish(self) -> None:
        """Wait until nothing is being written."""
        if self._saver is not None:
            self._saver.wait()

    def failed(self, step: int) -> bool:
        """Whether the save of that step, the newest one, failed, as `metrics` has found."""
        return self._failed_step == step

    def metrics(self) -> dict[str, float]:
        """Figures of the saves that ended since the last call; failures go to the log too."""
        found: dict[str, float] = {}
        for result in self._saver.results() if self._saver is not None else []:
            if result.error is None:
                found["checkpoint_blocked_s"] = result.blocked_s
                found["checkpoint_write_s"] = result.write_s
                found["checkpoint_bytes"] = float(result.size_bytes)
                found["checkpoint_written_bytes"] = float(result.written_bytes)
            else:
                self._report(result)
        if self.failures:
            found["checkpoint_failures"] = float(self.failures)
        return found

    def _check_weights(self) -> None:
        """Let no weights be committed that are not finite: their shard is never announced.

        Looked at are the weights as they are by now. A weight that is not finite never is again,
        so what was saved is sound if these are. In the saver's thread: training waits for nothing.
        """
        if not all_finite(self._weights):
            self.bad_weights = True
            raise NotFiniteError("its weights are not finite")

    def _report(self, result: SaveResult) -> None:
        self.failures += 1
        self._failed_step = result.step
        complain(f"checkpoint of step {result.step} failed: {result.error}; training continues")


def local_weights(tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """This rank's part of the model's weights, of a checkpoint's tensors."""
    return [
        weight.to_local() if isinstance(weight, DTensor) else weight
        for name, weight in tensors.items()
        if name.startswith("model.")
    ]


@torch.no_grad()
def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether no number in them is NaN or infinite; one pass over them, without a copy.

    The smallest and the largest show it, at 15 times the speed of the largest norm.
    """
    ends = [end.double() for one in tensors if one.numel() for end in one.aminmax()]
    return not ends or bool(torch.stack(ends).isfinite().all())
