"""One rank's line to its agent: the Unix socket that the agent names in the environment.

A background thread speaks on it (`gangline_schemas.rank_protocol`). Its loop, until the process
ends:

1. wait until the agent says something, a flush is asked for, or the period is over;
2. read what the agent asks (stop, checkpoint);
3. when all that was written before is sent: take what is queued and write it as one message.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from gangline_schemas.events.heartbeats import RankActivity, Trouble, TroubleKind
from gangline_schemas.events.workers import SampleRange
from gangline_schemas.failure_policy import TrainingPolicy
from gangline_schemas.rank_protocol import (
    FROM_AGENT,
    CopyDamaged,
    CopyReplaced,
    DataDamaged,
    Doing,
    HandlesStop,
    Hello,
    LeaveOutSamples,
    ShardReady,
    Troubled,
)
from gangline_worker.columns import Entry, as_now, number, to_reports, whole_step
from gangline_worker.loss_watch import FiniteWatch, SpikeWatch
from gangline_worker.save_interval import SaveInterval
from gangline_worker.trial_points import TrialPoints

AGENT_LOST: Final = "agent_lost"

FLUSH_PERIOD_S: Final = 0.25
QUEUE_LIMIT: Final = 20_000
QUEUE_VALUES: Final = 1_000_000  # about; the agent takes them within ten seconds
MESSAGE_VALUES: Final = 10_000  # about, taken at a time
DOINGS_LIMIT: Final = 100
ANOTHER_COPY_S: Final = 240.0  # less than the collective timeout of the ranks that wait meanwhile


class Reporter:
    """One rank's line to its agent. All methods may be called from any thread."""

    def __init__(
        self,
        socket_path: str | None,
        *,
        token: str = "",
        rank: int = 0,
        flush_period_s: float = FLUSH_PERIOD_S,
        queue_limit: int = QUEUE_LIMIT,
        policy: TrainingPolicy | None = None,
        interval_s: float | None = None,
        trial_metrics: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connect to the agent and start the background thread; do nothing without a path.

        Raises:
            OSError: the agent's socket cannot be connected to.
        """
        self._entries: deque[Entry] = deque(maxlen=queue_limit)
        self._limit = queue_limit
        self._points = TrialPoints(trial_metrics if rank == 0 else ())
        self._dropped = 0
        self._dropped_sent = 0
        self._shards: deque[ShardReady] = deque()
        self._doings: deque[Doing] = deque(maxlen=DOINGS_LIMIT)
        self._activity: RankActivity | None = None
        self._policy = policy or TrainingPolicy()
        self._finite = FiniteWatch(self._policy.on_nan.skip)
        self._was_finite = False
        self._refused_a_step = False
        self._spikes = SpikeWatch(self._policy.on_spike)
        self._troubles: deque[Trouble] = deque(maxlen=DOINGS_LIMIT)
        self._pending: deque[CopyDamaged | DataDamaged | HandlesStop | LeaveOutSamples] = deque()
        self._replaced: dict[str, bool] = {}
        self._answered = threading.Condition()
        self._period_s = flush_period_s
        self._stop_reason: str | None = None
        self._handles_stop = False
        self._committed: int | None = None
        self._interval_s: float | None = None
        self._interval = SaveInterval(interval_s, lambda: self._interval_s, clock)
        self._rank = rank
        self._behind = False
        self._requests_seen = 0
        self._requests_answered = 0
        self._sent = threading.Condition()
        self._flushes_wanted = 0
        self._flushes_done = 0
        self._lost = False
        self._socket: socket.socket | None = None
        if socket_path is None:
            return
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(socket_path)
        self._socket.sendall(Hello(rank=rank, token=token).encode() + b"\n")
        self._socket.setblocking(False)
        self._wake_r, self._wake_w = socket.socketpair()
        self._wake_w.setblocking(False)
        threading.Thread(
            target=self._run, args=(self._socket,), name="gangline-report", daemon=True
        ).start()

    @property
    def connected(self) -> bool:
        """Whether there is an agent that listens."""
        return self._socket is not None and not self._lost

    @property
    def dropped(self) -> int:
        """Steps whose metrics were shed because the agent did not take them in time."""
        return self._dropped

    @property
    def policy(self) -> TrainingPolicy:
        """The job's reaction to losses that are not finite, or that leap up."""
        return self._policy

    @property
    def not_finite(self) -> bool:
        """Whether the last reported step was not finite: nothing of it may be saved."""
        return self._finite.in_a_row > 0

    def should_skip(self, step: int, *values: float) -> bool:
        """Whether a step's update must be left out, since one of these values is not finite.

        Raises:
            NotFiniteError: this happened in more steps in a row than the job bears.
            TypeError: the step is no integer from 0 on.
        """
        at = whole_step(step)
        if at is None:
            raise TypeError(f"step: {step!r:.80} is no integer from 0 on")
        finite = all(map(math.isfinite, values))
        self._note_finite(at, finite=finite)
        return not finite

    def report(self, metrics: Mapping[str, float], step: int) -> None:
        """Queue the metrics of one finished step; the oldest go first when the queue is full.

        A step that is no integer from 0 on is left out; a warning says so once.

        Raises:
            NotFiniteError: `loss` was finite once, and is not for more steps than the job bears.
        """
        if self._socket is None:
            return
        at = whole_step(step)  # now: a script may count in one tensor
        if at is None:
            self._refuse(step)
            return
        kept = {name: v if type(v) is float else as_now(v) for name, v in metrics.items()}
        loss = kept.get("loss")
        if isinstance(loss, float):  # a tensor on a GPU is not waited for here
            finite = math.isfinite(loss)
            self._was_finite = self._was_finite or finite
            if self._was_finite:
                self._note_finite(at, finite=finite)
        waiting = len(self._entries)
        if waiting == self._limit:
            self._dropped += 1
        elif waiting * len(metrics) > QUEUE_VALUES:
            with contextlib.suppress(IndexError):  # all was sent just now
                self._entries.popleft()
                self._dropped += 1
        self._points.saw(at, kept)  # first: a flush waits for the entries
        self._entries.append((at, time.time_ns() // 1_000_000, kept))

    def _refuse(self, step: object) -> None:
        if not self._refused_a_step:
            self._refused_a_step = True
            warnings.warn(
                f"not reported: step {step!r:.80} is no integer from 0 on; this is said once",
                stacklevel=4,
            )

    def _note_finite(self, step: int, *, finite: bool) -> None:
        if self._finite.saw(step, finite=finite):
            message = f"the loss or the gradient of step {step} is not finite"
            self._report(Trouble(kind=TroubleKind.NOT_FINITE, step=step, message=message))

    def _report(self, trouble: Trouble) -> None:
        if self.connected:
            self._troubles.append(trouble)
            self._wake()

    @property
    def activity(self) -> RankActivity | None:
        """The activity that this rank reported last."""
        return self._activity

    def do(self, activity: RankActivity) -> None:
        """Say what this rank does from now on, after the steps that were reported."""
        self._activity = activity
        if self.connected:
            self._doings.append(Doing(activity=activity))
            self._wake()

    def shard_ready(self, message: ShardReady) -> None:
        """Tell the agent of a finished shard. Never shed: at most one is made per save."""
        if self.connected:
            self._shards.append(message)
            self._wake()

    def another_copy(self, file: str, reason: str) -> bool:
        """Ask the agent to replace a damaged file of the checkpoint to start from, and wait.

        True when a sound copy lies there now; False without an agent, without another copy, or
        after ANOTHER_COPY_S.
        """
        if not self.connected:
            return False
        self._pending.append(CopyDamaged(file=file, reason=reason[:1000]))
        self._wake()
        with self._answered:
            self._answered.wait_for(lambda: self._lost or file in self._replaced, ANOTHER_COPY_S)
            return self._replaced.pop(file, False)

    def data_damaged(self, message: DataDamaged) -> None:
        """Report a block of data that is left out. Never shed: each is reported once."""
        if self.connected:
            self._pending.append(message)
            self._wake()

    def leave_out(self, samples: Sequence[SampleRange]) -> None:
        """Tell the agent which samples the job goes without once this rank has failed: all."""
        if self.connected:
            self._pending.append(LeaveOutSamples(left_out=tuple(samples)))
            self._wake()

    def should_stop(self) -> str | None:
        """Why to save and leave, or None. Once set it stays, and it is free to ask.

        The first call tells the agent that this program handles a stop by itself.
        """
        if not self._handles_stop:
            self._handles_stop = True
            if self.connected:
                self._pending.append(HandlesStop())
                self._wake()
        return self._stop_reason

    def request_stop(self, reason: str) -> None:
        """Make `should_stop` answer `reason`, unless it already has one."""
        if self._stop_reason is None:
            self._stop_reason = reason

    @property
    def interval_s(self) -> float | None:
        """How often the job saves since that was changed while it runs."""
        return self._interval_s

    @property
    def behind(self) -> bool:
        """Whether as many saves as may wait lie before the store: begin no other."""
        return self._behind

    @property
    def committed_step(self) -> int | None:
        """The newest step of this attempt that the agent says is committed and kept."""
        return self._committed

    def should_checkpoint(self) -> bool:
        """Whether a save was requested, or one is due by the interval (on rank 0).

        True once for each. One that is due waits while the store has not taken those before it.
        """
        due = self._rank == 0 and not self._behind and self._interval.passed()
        if not (self.asked_to_save() or due):
            return False
        self.save_begins()
        return True

    def save_begins(self) -> None:
        """The interval to the next one begins."""
        self._interval.begin()

    def asked_to_save(self) -> bool:
        """True once for each time that a checkpoint was asked for since the last call."""
        seen = self._requests_seen
        if seen == self._requests_answered:
            return False
        self._requests_answered = seen
        return True

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Send all that was reported before; False when the agent did not take it in time."""
        if not self.connected:
            return not (self._entries or self._shards)
        with self._sent:
            self._flushes_wanted += 1
            wanted = self._flushes_wanted
        self._wake()
        with self._sent:
            self._sent.wait_for(lambda: self._lost or self._flushes_done >= wanted, timeout_s)
            return self._flushes_done >= wanted

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full of wake-ups already, or closed
            self._wake_w.send(b"w")

    def _run(self, agent: socket.socket) -> None:
        try:
            self._converse(agent)
        except OSError:
            pass
        finally:
            self._lost = True
            self.request_stop(AGENT_LOST)
            for waited_for in (self._sent, self._answered):
                with waited_for:
                    waited_for.notify_all()
            for line in (agent, self._wake_r, self._wake_w):
                line.close()

    def _converse(self, agent: socket.socket) -> None:
        """The loop of the module's docstring; returns when the agent has hung up."""
        incoming, outgoing = b"", b""
        due = time.monotonic() + self._period_s
        waiting = select.poll()  # takes descriptors above 1,023 too: a script may have many open
        waiting.register(self._wake_r, select.POLLIN)
        while True:
            waiting.register(agent, select.POLLIN | (select.POLLOUT if outgoing else 0))
            wait_s = max(0.0, due - time.monotonic())
            ready = dict(waiting.poll(math.ceil(wait_s * 1000)))
            if self._wake_r.fileno() in ready:
                self._wake_r.recv(4096)
            found = ready.get(agent.fileno(), 0)
            if found & ~select.POLLOUT:
                received = agent.recv(65536)
                if not received:
                    return
                *lines, incoming = (incoming + received).split(b"\n")
                for line in lines:
                    self._obey(line)
            if found & select.POLLOUT:
                outgoing = outgoing[agent.send(outgoing) :]
            is_due = time.monotonic() >= due
            if is_due:
                due = time.monotonic() + self._period_s
            if not outgoing:
                outgoing = self._next_message(is_due=is_due)

    def _obey(self, line: bytes) -> None:
        if not line.strip():
            return
        message = FROM_AGENT.validate_json(line, extra="ignore")
        if isinstance(message, CopyReplaced):
            with self._answered:
                self._replaced[message.file] = message.sound
                self._answered.notify_all()
            return
        if message.stop is not None:
            self.request_stop(message.stop)
        self._requests_seen = max(self._requests_seen, message.checkpoint_request)
        self._committed = message.committed
        self._interval_s = message.interval_s
        self._behind = message.behind

    def _next_message(self, *, is_due: bool) -> bytes:
        """The next message, or nothing; ends the flushes that have nothing left to wait for.

        Steps go before the rest, so that the agent knows a step when its shard arrives, and
        what was done until then.
        """
        wanted = self._flushes_wanted  # read first: what was reported before it, is queued
        if not (self._entries or self._doings or self._troubles or self._shards or self._pending):
            if wanted > self._flushes_done:
                with self._sent:
                    self._flushes_done = wanted
                    self._sent.notify_all()
            return b""
        urgent = self._doings or self._troubles or self._shards or self._pending
        if not (is_due or urgent or wanted > self._flushes_done):
            return b""
        entries: list[Entry] = []
        values = 0
        while self._entries and values < MESSAGE_VALUES:
            entries.append(self._entries.popleft())
            values += 2 + len(entries[-1][2])
            self._watch_loss(entries[-1])
        parts = []
        if entries:
            dropped = self._dropped
            reports = to_reports(entries, dropped - self._dropped_sent)
            parts += [report.encode() for report in reports]
            self._dropped_sent = dropped
        parts += [point.encode() for point in self._points.take()]
        while self._troubles:
            parts.append(Troubled(trouble=self._troubles.popleft()).encode())
        while self._doings:
            parts.append(self._doings.popleft().encode())
        while self._shards:
            parts.append(self._shards.popleft().encode())
        while self._pending:
            parts.append(self._pending.popleft().encode())
        return b"".join(part + b"\n" for part in parts)

    def _watch_loss(self, entry: Entry) -> None:
        """Here rather than in `report`, which costs training time."""
        step, metrics = whole_step(entry[0]), entry[2]
        loss = number(metrics.get("loss"))
        spike = None if loss is None or step is None else self._spikes.saw(step, loss)
        if spike is not None:
            self._troubles.append(
                Trouble(kind=TroubleKind.LOSS_SPIKE, step=step, message=spike.describe())
            )
