"""The training loop.

`Trainer.train_step` is the step; `Trainer.run` is what happens around it:

1. read this rank's part of the batch (a function of the position in the data alone);
2. take the step; its update is left out when a gradient is not finite, which all ranks see alike;
3. agree with all ranks, in one small exchange, on its result and whether to save or to stop;
4. report the step's metrics;
5. begin a save when it was agreed on; it runs while the next step computes;
6. while a rank has no next batch, wait with it: what is asked of any of them is heeded meanwhile.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

from gangline_schemas.events.workers import LEFT_OUT_RANGES
from gangline_worker.agent_line import AGENT_LOST
from gangline_worker.data.left_out import left_out_of_job, used_in, widened
from gangline_worker.data.samples import Batch
from gangline_worker.loss_watch import LossSpikeError, LostTrainingError, NotFiniteError, SpikeWatch
from gangline_worker.peak import Peak, peak_of
from gangline_worker.reporting import doing, report, reporter, should_skip, should_stop
from gangline_worker.training.agreement import StepNews, StepSummary, all_agree, exchange
from gangline_worker.training.busy import LayerClock, own_work
from gangline_worker.training.config import TrainConfig
from gangline_worker.training.console import complain, say
from gangline_worker.training.dataset import open_dataset
from gangline_worker.training.evaluation import (
    EVALUATION_POSITION,
    Evaluator,
    RefusedError,
    records_losses,
    validate,
    validates,
)
from gangline_worker.training.feed import Feed
from gangline_worker.training.flops import flops_per_token
from gangline_worker.training.gradients import clip_gradients
from gangline_worker.training.history import History
from gangline_worker.training.layout import lay_out
from gangline_worker.training.parallel import spread
from gangline_worker.training.resume import resume
from gangline_worker.training.saving import Checkpointer, CheckpointSchedule
from gangline_worker.training.schedule import lr_at
from gangline_worker.training.state import (
    Evaluation,
    TrainState,
    build_optimizer,
    capture_rng,
    code_ref,
    seed_everything,
    tensors_of,
)
from gangline_worker.training.world import World, compute_dtype

_OTHERS_END_S = 3.0
"""How long to wait for the end of a gang of which a rank ends, so that its error is the last."""
_BAD_WEIGHTS = "weights of this gang are not finite, and never will be again"


class AgentLostError(RuntimeError):
    """A rank's agent is gone: what is computed from here on could not count."""


class SaveFailedError(RuntimeError):
    """The last checkpoint could not be saved, so the run's result would be lost."""


@dataclass(frozen=True)
class StepResult:
    """One rank's view of one step."""

    loss: float | None  # mean over this rank's samples, nats a byte; None: of an earlier stage
    grad_norm: float  # of the whole model, before clipping
    lr: float
    data_wait_s: float
    busy_s: float = 0.0  # it waited for data and computed, before it waited for other ranks


class Trainer:
    """One rank of one attempt."""

    def __init__(self, config: TrainConfig, world: World, resume_from: Path | None) -> None:
        """Build, then start afresh or from a committed checkpoint.

        Raises:
            ConfigError: settings and world size do not fit together.
            DataError: the data is missing, ranks read different data, or it has changed.
            StoreError: the store that has the data does not answer.
            CorruptCheckpoint, WrongCheckpoint: all ranks raise when one cannot load.
        """
        self.config, self.world = config, world
        self.layout = lay_out(config, world.rank, world.size)
        self.step = 0
        self.position = 0  # samples used so far, over all ranks
        self.left_out = left_out_of_job()  # others, that this run goes without
        self._recorded: Evaluation | None = None  # with the checkpoint that was loaded
        self.data, self._data_digest = open_dataset(config, self.layout, world)
        seed_everything(config.seed, world.rank)
        self.model = spread(config, world, self.layout)
        self.optimizer = build_optimizer(self.model.plain, config)
        self._tensors = tensors_of(self.model.plain, self.optimizer, self.model.mesh)
        if resume_from is None:
            self.model.plain.reset_weights(config.seed)
        else:
            found = resume(
                resume_from, config, world, self._tensors, self._data_digest, self.left_out
            )
            self.step, self.position, self.left_out = found.step, found.position, found.left_out
            self._recorded = found.evaluation
            self.model.plain.reset_buffers()
        self._began = (self.step, self.position)
        self._evaluator = self._open_evaluator()
        self._feed = Feed(
            self._read,
            start=self.position,
            stride=config.batch_size,
            ahead=config.data_ahead,
            device=world.device,
        )
        self.checkpointer = Checkpointer(self._tensors)
        self.schedule = CheckpointSchedule(config)
        layers, meet_inside = self.model.plain.layers.values(), self.layout.shape.tensor > 1
        self._clock = LayerClock(own_work(layers, tensor_parallel=meet_inside), world.device)
        policy = reporter().policy.on_spike
        self._spikes = SpikeWatch(policy) if policy.then == "restart" else None
        self._flops_per_token = flops_per_token(config)
        self._peak: Peak | None = None  # of rank 0, which reports for all
        self._history = History(world.size)
        if world.rank == 0:
            self._peak = peak_of(world.device, compute_dtype(config, world.device))
            if self._peak.measured:
                say("mfu is of a measured peak: no data sheet's is known for this device")
        self._saved: int | None = None  # the last step that was saved, or is being saved
        self._ended = time.perf_counter()  # the last step

    def validate(self) -> float:
        """See that what was loaded may be promoted; the loss that was found.

        Raises:
            RefusedError: on all ranks, when it may not.
        """
        if self._evaluator is None or self.step == 0:
            raise RefusedError("there is no checkpoint to validate")
        return validate(self._evaluator, self._recorded, self._tensors, self.world)

    def train_step(self) -> StepResult:
        """One optimizer step over one global batch.

        Raises:
            NotFiniteError: on all ranks, before the weights change.
        """
        config, lr = self.config, lr_at(self.step + 1, self.config)
        inputs, targets, data_wait_s = self._feed.take(self.position)
        loss = self.model.backward(inputs, targets)
        grad_norm = clip_gradients(
            self.model.plain.parameters(), config.clip_norm, self.model.stages
        ).item()
        busy_s = data_wait_s + self._clock.take()
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.checkpointer.before_update()
        if should_skip(self.step + 1, grad_norm):
            if self.world.rank == 0:
                complain(f"step {self.step + 1}: the gradient is {grad_norm}; no update is made")
        else:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.position += config.batch_size
        return StepResult(None if loss is None else loss.item(), grad_norm, lr, data_wait_s, busy_s)

    def run(self) -> str | None:
        """Train to the last step, or until asked to stop; gives the reason in that case.

        The state of the last step taken is saved in either case.

        Raises:
            AgentLostError, SaveFailedError: the run cannot count.
            LostTrainingError: all ranks raise; an earlier checkpoint is better.
        """
        doing("training")
        if self.left_out.ranges and self.world.rank == 0:
            say(f"{self.left_out.count} samples are left out: a loss went wrong there")
        try:
            return self._steps()
        except LostTrainingError as error:
            self._leave_out(error.steps)
            self.checkpointer.finish()  # what is being written is from before it
            raise

    def _steps(self) -> str | None:
        summary = self._meet(None)
        while not (summary.stop or self.step == self.config.steps):
            summary = self._meet(self.train_step())
        return (should_stop() or "another rank was asked to stop") if summary.stop else None

    def _meet(self, result: StepResult | None) -> StepSummary:
        """Exchange news between two steps, until all ranks have their next batch or must leave.

        `result` is that of the step before, of which there is none at the start.
        """
        summary = exchange(self._news(result), self.world.control)
        if result is not None:
            self._report(result, summary, self._evaluate_if_due())
        _check(summary)
        sound = result is not None and self._is_sound(summary.loss)
        while True:
            last = summary.stop or self.step == self.config.steps
            if result is not None:
                self._save_if_due(result, summary, sound=sound, last=last)
            if last:
                self._finish()
            elif summary.no_data:
                self.checkpointer.finish()
                if not self._feed.failed:  # what the rank that cannot read raises ends us all
                    time.sleep(_OTHERS_END_S)
            if last or summary.no_data or not summary.waits:
                return summary
            self._feed.await_batch()
            summary = exchange(self._news(result), self.world.control)
            _check(summary)

    def _save_if_due(
        self, result: StepResult, summary: StepSummary, *, sound: bool, last: bool
    ) -> None:
        if not self.checkpointer.enabled or self._saved == self.step:
            return
        if last or (sound and summary.no_data):
            self._save(result, summary)
        elif sound and summary.wants_checkpoint:
            if not summary.saving:
                self._save(result, summary)
            elif self.schedule.put_off() and self.world.rank == 0:
                say(f"no save at step {self.step}: earlier ones are being written or stored")

    def _is_sound(self, loss: float) -> bool:
        """Whether a later failure of this kind may go back to this step: the same on all ranks."""
        if self._spikes is None:
            return not reporter().not_finite
        spike = self._spikes.saw(self.step, loss)
        if spike is not None:
            message = f"{spike.describe()}; training.on_spike.then is restart"
            raise LossSpikeError(message, range(spike.first, spike.last + 1))
        return not (reporter().not_finite or self._spikes.suspicious)

    def _leave_out(self, steps: range) -> None:
        """Tell which samples the next attempt goes without: those of these steps."""
        policy = reporter().policy.leave_out
        if not (steps and policy.samples_max):
            return
        size, began = self.config.batch_size, self._began
        used = used_in(steps, before=policy.before, size=size, began=began)
        more = widened(self.left_out, used, samples_max=policy.samples_max)
        if more is not None:
            reporter().leave_out(more.ranges)
            reporter().flush()
        elif self.world.rank == 0:
            complain(
                "no more samples are left out: training.leave_out.samples_max is reached, "
                f"or {LEFT_OUT_RANGES} ranges"
            )

    def _read(self, position: int) -> Batch:
        layout = self.layout
        return self.left_out.batch(
            self.data,
            position,
            self.config.batch_size,
            layout.data_rank,
            layout.shape.data_ranks,
        )

    def _news(self, result: StepResult | None) -> StepNews:
        if reporter().asked_to_save():
            self.schedule.request()
        reason = should_stop()
        loss = None if result is None else result.loss
        return StepNews(
            loss=loss or 0.0,
            has_loss=loss is not None,
            data_wait_s=0.0 if result is None else result.data_wait_s,
            stop=reason is not None,
            lost=reason == AGENT_LOST,
            wants_checkpoint=self.schedule.wanted(self.step, self.world.rank),
            saving=self.checkpointer.busy,
            failed_saves=self.checkpointer.failures,
            bad_weights=self.checkpointer.bad_weights,
            waits=self._feed.waits,
            no_data=self._feed.failed,
        )

    def _report(self, result: StepResult, summary: StepSummary, eval_loss: float | None) -> None:
        now = time.perf_counter()
        step_s, self._ended = now - self._ended, now
        metrics = {
            "step_s": step_s,
            "data_wait_s": result.data_wait_s,
            "busy_s": result.busy_s,
        }
        metrics.update(self.checkpointer.metrics())
        metrics.update(self.data.counts())
        if self.left_out.ranges:
            metrics["left_out_samples"] = float(self.left_out.count)
        if self._peak is not None:
            tokens_per_s = self.config.batch_size * self.config.seq_len / step_s
            peak = self._peak.flops * self.world.size
            metrics |= {
                "loss": summary.loss,
                "lr": result.lr,
                "grad_norm": result.grad_norm,
                "tokens_per_s": tokens_per_s,
                "mfu": tokens_per_s * self._flops_per_token / peak,
                "data_wait_s": summary.data_wait_s,
            }
            if eval_loss is not None:
                metrics["eval_loss"] = eval_loss
            if self._peak.measured:
                metrics["mfu_peak_measured"] = 1.0
            if self.step % self.config.log_every_steps == 0 or self.step == self.config.steps:
                say(
                    f"step {self.step}/{self.config.steps} loss {summary.loss:.4f} "
                    f"lr {result.lr:.2e} grad_norm {result.grad_norm:.3f} "
                    f"{tokens_per_s:,.0f} tokens/s mfu {metrics['mfu']:.1%}"
                )
            self._history.add(self.step, metrics)
        report(metrics, self.step)

    def _save(self, result: StepResult, summary: StepSummary) -> None:
        state = TrainState(
            step=self.step,
            position=self.position,
            config_digest=self.config.digest(),
            data_digest=self._data_digest,
            code_ref=code_ref(),
            rng=capture_rng(self.world.device),
            evaluation=self._evaluate(),
            left_out=self.left_out.ranges,
            data_order=self.config.data_order(),
        )
        metrics = {"loss": summary.loss, "lr": result.lr}
        if state.evaluation is not None:
            metrics["eval_loss"] = state.evaluation.loss
        metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self.checkpointer.begin(self.step, state.as_json(), metrics)
        self.schedule.saved()
        self._saved = self.step

    def _open_evaluator(self) -> Evaluator | None:
        """Its batch is read once, before anything else reads ahead."""
        if not (records_losses() or validates() or self.config.eval_every_steps):
            return None
        size, layout = self.config.batch_size, self.layout
        batch = self.data.batch(
            EVALUATION_POSITION, size, layout.data_rank, layout.shape.data_ranks
        )
        return Evaluator(self.model, self.world, batch, self.config.batch_size)

    def _evaluate_if_due(self) -> float | None:
        every = self.config.eval_every_steps
        last = self.step == self.config.steps
        if self._evaluator is None or not every or (self.step % every and not last):
            return None
        with doing("evaluating"):
            found = self._evaluator.loss()
        self._clock.take()  # not the work of a step
        return found

    def _evaluate(self) -> Evaluation | None:
        if self._evaluator is None:
            return None
        found = self._evaluator.measure()
        self._clock.take()  # not the work of a step
        return found

    def _finish(self) -> None:
        """Wait for the last save and see that every rank's is whole, and of finite weights."""
        doing("checkpointing")
        self.checkpointer.finish()
        if not all_agree(self.world.control, ok=not self.checkpointer.bad_weights):
            raise NotFiniteError(_BAD_WEIGHTS)
        metrics = self.checkpointer.metrics()
        if metrics:
            report(metrics, self.step)
        if not all_agree(self.world.control, ok=not self.checkpointer.failed(self.step)):
            raise SaveFailedError(f"the checkpoint of step {self.step}, the last, is not whole")
        if self.world.rank == 0:
            self._history.leave()


def _check(summary: StepSummary) -> None:
    if summary.lost:
        raise AgentLostError("an agent of this gang is gone; leaving without a checkpoint")
    if summary.bad_weights:
        raise NotFiniteError(_BAD_WEIGHTS)
