"""Copies of tensors on GPUs, made while training continues.

A copy comes after all that was queued by the time of `mark`, on the streams that were current then.
It runs on a stream of its own on each GPU, the same for every save: so training's queue waits for
none, and a copy never meets one of an earlier save that failed half-way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from gangline_worker.checkpoint.alike import weighted_sum

_64_BITS = 2**64 - 1
Marks = Mapping[torch.device, torch.cuda.Event]
"""How far each GPU's stream was; empty where all lies in main memory."""


def on_gpus(sources: Iterable[torch.Tensor]) -> set[torch.device]:
    """The GPUs that hold any of these."""
    return {source.device for source in sources if source.is_cuda}


def mark(sources: Iterable[torch.Tensor]) -> Marks:
    """How far these tensors' GPUs are to be before they are copied. In the thread that trains."""
    marks = {}
    for device in on_gpus(sources):
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(device))
        marks[device] = event
    return marks


class GpuCopier:
    """Makes the copies of one saver, in one thread."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    @torch.no_grad()
    def copy(
        self, into: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], marks: Marks
    ) -> None:
        """Fill each of `into`, in main memory, from its source; all are filled when it returns."""
        at = {device: [i for i, s in enumerate(sources) if s.device == device] for device in marks}
        try:
            for device, found in at.items():
                # A thread begins at GPU 0, and to leave a stream of another one would take it back
                # there: half a GB of that GPU's memory for each rank of the node.
                torch.cuda.set_device(device)
                stream = self._stream(device)
                stream.wait_event(marks[device])
                with torch.cuda.stream(stream):
                    torch._foreach_copy_(
                        [into[i] for i in found], [sources[i] for i in found], non_blocking=True
                    )
            for target, source in zip(into, sources, strict=True):
                if not source.is_cuda:
                    target.copy_(source)
        finally:
            for device in marks:
                self._stream(device).synchronize()

    @torch.no_grad()
    def digests(self, sources: Mapping[str, torch.Tensor], marks: Marks) -> dict[str, str]:
        """The digest of each tensor that lies on a GPU, made there."""
        found: dict[str, str] = {}
        for device in marks:
            here = {name: one for name, one in sources.items() if one.device == device}
            if not here:
                continue
            torch.cuda.set_device(device)
            stream = self._stream(device)
            stream.wait_event(marks[device])
            with torch.cuda.stream(stream):
                sums = torch.stack([weighted_sum(one) for one in here.values()]).tolist()
            found |= {
                name: f"sum:{one & _64_BITS:016x}" for name, one in zip(here, sums, strict=True)
            }
        return found

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._streams[device]
