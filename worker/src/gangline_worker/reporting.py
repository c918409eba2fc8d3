"""Reports of a training script to Gangline, and Gangline's requests to it. Imports no torch.

```python
from gangline_worker import report, should_stop

for step in range(1, steps + 1):
    loss = train_step()
    report({"loss": loss}, step)          # about a microsecond; never blocks
    if reason := should_stop():           # preempted, cancelled, ...: save and leave
        break
```

Without an agent (plain torchrun, a notebook) everything here works and goes nowhere.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import threading
from collections.abc import Mapping
from types import FrameType
from typing import Final

from gangline_schemas.events.heartbeats import RankActivity
from gangline_schemas.failure_policy import TrainingPolicy
from gangline_schemas.job import TrialRef
from gangline_worker.agent_line import Reporter
from gangline_worker.save_interval import named_interval_s

SOCKET_ENV: Final = "GANGLINE_AGENT_SOCKET"
TOKEN_ENV: Final = "GANGLINE_RANK_TOKEN"  # noqa: S105 -- the variable's name, not a token
TRAINING_ENV: Final = "GANGLINE_TRAINING"
TRIAL_ENV: Final = "GANGLINE_TRIAL"
AT_EXIT_S: Final = 5.0
"""So long a program that ends waits for its agent to take its last reports."""

_reporter: Reporter | None = None
_reporter_lock = threading.Lock()


def reporter() -> Reporter:
    """This process's reporter, connected as the environment says, made at the first use."""
    global _reporter  # noqa: PLW0603 -- one line to the agent per process
    if _reporter is None:
        with _reporter_lock:
            if _reporter is None:
                _reporter = Reporter(
                    os.environ.get(SOCKET_ENV),
                    token=os.environ.get(TOKEN_ENV, ""),
                    rank=int(os.environ.get("RANK", "0")),
                    policy=TrainingPolicy.decode(os.environ.get(TRAINING_ENV) or "{}"),
                    interval_s=named_interval_s(),
                    trial_metrics=trial.metrics if (trial := named_trial()) else (),
                )
                atexit.register(_send_rest)
    return _reporter


def _send_rest() -> None:
    """A program that ends has its last reports sent."""
    if _reporter is not None:
        _reporter.flush(AT_EXIT_S)


def _after_fork_in_child() -> None:
    """A child (a data loader's worker) is not a rank: no line to the agent, SIGTERM ends it."""
    global _reporter, _reporter_lock  # noqa: PLW0603
    _reporter_lock = threading.Lock()
    if _reporter is not None:
        _reporter = Reporter(None)
    if signal.getsignal(signal.SIGTERM) is _stop_asked_by_signal:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


os.register_at_fork(after_in_child=_after_fork_in_child)


def report(metrics: Mapping[str, float], step: int) -> None:
    """Report the metrics of one finished step. Costs about a microsecond and never blocks.

    Every rank may report; curves are kept by rank. Values that are not finite show as gaps. A
    metric `loss` is watched: one that leaps up is reported, and a rank whose loss was finite raises
    NotFiniteError once it is not for more steps than the job's `training.on_nan.skip`. A loss on a
    GPU is not waited for and never raises: give `loss.item()`. A metric that a study compares
    trials by is passed on to the study, from rank 0. A metric `busy_s`, the seconds that the step
    worked before it waited for other ranks, finds stragglers. Steps are integers from 0 on; others
    are left out, with one warning.
    """
    reporter().report(metrics, step)


def should_skip(step: int, *values: float) -> bool:
    """Whether to leave out the update of this step: a value (loss, gradient norm) is not finite.

    ```python
    norm = clip_grad_norm_(model.parameters(), 1.0)
    if not should_skip(step, norm.item()):
        optimizer.step()
    ```

    Give what all ranks have alike, as the norm of summed gradients is: each decides on its own.
    Until a step is finite again `save` saves nothing. Raises NotFiniteError, which the platform
    restarts from the last checkpoint, after `training.on_nan.skip` such steps in a row.
    """
    return reporter().should_skip(step, *values)


class doing:  # noqa: N801 -- used like a function, and with `with`
    """Say what this program does.

    It is starting, training, checkpointing, compiling, evaluating, or waiting (for its data).

    ```python
    doing("training")                     # from now on; its steps are learned
    with doing("evaluating"):             # and back to what it was
        evaluate()
    with doing("waiting"):                # for its data
        batch = queue.get()
    ```

    A gang of which all ranks train hangs when none ends a step for 4 times its slow steps (at least
    60 s, 20 s under `gangline up`); it is then started again. It is enough that rank 0 reports its
    steps. Other activities may take 10 minutes, and so may the steps of a program that reports
    nothing. Raises ValueError for another word.
    """

    def __init__(self, activity: str) -> None:
        self._before = reporter().activity
        reporter().do(RankActivity(activity))

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        reporter().do(self._before or RankActivity.TRAINING)


def should_checkpoint() -> bool:
    """True once for each checkpoint that is due by the job's interval, or was asked for.

    The interval is `checkpoint.interval_minutes`, or what is advised with `adapt_interval`. It
    counts from the last `save`, on rank 0 alone, and waits while the store is behind with earlier
    saves. One is asked for before a drain, or on a failing GPU. Each rank learns of it on its own:
    agree across ranks before saving together.
    """
    return reporter().should_checkpoint()


def should_stop() -> str | None:
    """Why to save and exit 0 (preempted, cancelled, ...), or None to continue.

    Call it in every rank after every step. From the first call on the agent leaves the stop to the
    program, within `stop_grace_seconds`; a program that never asks gets SIGTERM at once. SIGTERM
    does not end the program then, but is a reason to stop (`sigterm`), unless the program handles
    SIGTERM itself. Each rank learns of a stop on its own: agree across ranks before leaving a
    collective loop.
    """
    if not _signal_seen_to:
        _see_to_signal()
    return reporter().should_stop()


_signal_seen_to = False


def _see_to_signal() -> None:
    """Only the main thread can; a later call from there makes up for one from elsewhere."""
    global _signal_seen_to  # noqa: PLW0603 -- once per process
    if threading.current_thread() is not threading.main_thread():
        return
    _signal_seen_to = True
    reporter()  # no lock may be taken in the handler
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _stop_asked_by_signal)


def _stop_asked_by_signal(_number: int, _frame: FrameType | None) -> None:
    reporter().request_stop("sigterm")


def flush(timeout_s: float = 10.0) -> bool:
    """Wait until the agent has all that was reported; False after `timeout_s` seconds."""
    return reporter().flush(timeout_s)


def named_trial() -> TrialRef | None:
    """The trial that this job is, as the agent says in the environment."""
    named = os.environ.get(TRIAL_ENV)
    return TrialRef.decode(named) if named else None


def hyperparameters() -> dict[str, object]:
    """The job's hyperparameters, as submitted; empty outside of Gangline."""
    found = json.loads(os.environ.get("GANGLINE_HYPERPARAMETERS") or "{}")
    if not isinstance(found, dict):
        raise TypeError("GANGLINE_HYPERPARAMETERS must be a JSON object of names and values")
    return found
