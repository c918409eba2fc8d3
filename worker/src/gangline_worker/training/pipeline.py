"""Pipeline parallelism: stages take micro-batches in turn, one forward, one backward (1F1B).

The schedule is that of PipeDream-Flush (Narayanan et al., 2021): a stage holds the activations of
at most as many micro-batches as there are stages.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from gangline_worker.training.config import TrainConfig
from gangline_worker.training.gradients import spread_nonfinite
from gangline_worker.training.layout import Layout
from gangline_worker.training.model import loss_of
from gangline_worker.training.shapes import VOCABULARY


class Pipeline:
    """This rank's stage and when it does what."""

    def __init__(
        self,
        module: nn.Module,
        config: TrainConfig,
        layout: Layout,
        *,
        device: torch.device,
        stream_dtype: torch.dtype,
        group: dist.ProcessGroup,
    ) -> None:
        """`group` are the stages in order; `stream_dtype` is that of what goes between them."""
        self._layout, self._parts = layout, config.accumulation
        samples = config.batch_size // layout.shape.data_ranks // config.accumulation
        stream = torch.empty(
            samples,
            config.seq_len // layout.shape.tensor,
            config.dim,
            dtype=stream_dtype,
            device="meta",
        ).requires_grad_()
        bytes_in = torch.empty(samples, config.seq_len, dtype=torch.int64, device="meta")
        logits = torch.empty(samples, config.seq_len, VOCABULARY, device="meta").requires_grad_()
        stage = PipelineStage(
            module,
            layout.stage,
            layout.shape.pipeline,
            device,
            input_args=bytes_in if layout.first_stage else stream,
            output_args=logits if layout.last_stage else stream,
            group=group,
        )
        self._schedule = Schedule1F1B(
            stage,
            self._parts,
            loss_fn=self._loss,
            scale_grads=False,
        )

    def backward(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        """Gradients of this stage for one batch; the mean loss, on the last stage alone."""
        return self._pass(
            functools.partial(self._schedule.step, return_outputs=False), inputs, targets
        )

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        """The mean loss without gradients, on the last stage alone."""
        return self._pass(self._schedule.eval, inputs, targets)

    def _pass(self, run: Callable[..., object], inputs: Tensor, targets: Tensor) -> Tensor | None:
        losses: list[Tensor] = []
        arguments = [(part,) for part in inputs.chunk(self._parts)]
        run(
            arg_mbs=arguments if self._layout.first_stage else None,
            target_mbs=list(targets.chunk(self._parts)) if self._layout.last_stage else None,
            losses=losses if self._layout.last_stage else None,
        )
        return torch.stack(losses).sum().detach() if self._layout.last_stage else None

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return spread_nonfinite(loss_of(logits, targets) / self._parts)
