"""Numbers that still lie on a GPU: read later, so that a training step does not wait for them."""

from __future__ import annotations

import sys
from typing import Any


class OnDevice:
    """A copy of a GPU tensor with one value, and the event after which the copy is whole."""

    __slots__ = ("_copy", "_event")

    def __init__(self, copy: Any, event: Any) -> None:
        self._copy, self._event = copy, event

    def __float__(self) -> float:
        """Wait for the GPU; NaN if it failed meanwhile, as the script gets that error itself."""
        try:
            self._event.synchronize()
            return float(self._copy.item())
        except RuntimeError:
            return float("nan")


def on_device(tensor: Any) -> OnDevice:
    """Copy a tensor on its GPU, in the order of its stream: the script may overwrite it at once."""
    torch = sys.modules["torch"]
    with torch.cuda.device(tensor.device):
        copy = tensor.detach().clone()
        event = torch.cuda.Event()
        event.record()
    return OnDevice(copy, event)
