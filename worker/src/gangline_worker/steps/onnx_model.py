"""Models as ONNX: written by torch, checked and run by onnxruntime. Both are optional."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from gangline_worker.steps.folders import StepError

_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def need_onnx() -> None:
    """Raise StepError if a package is missing, with the way to get it."""
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise StepError(
            f"--format onnx needs {', '.join(missing)}: install gangline-worker[onnx] where the "
            "step runs, or in its image"
        )


def write_onnx(program: torch.export.ExportedProgram, place: Path) -> None:
    """Write the graph with its weights in one file."""
    made = torch.onnx.export(program, dynamo=True, verbose=False)
    if made is None:
        raise StepError("torch gave no ONNX program")
    made.save(str(place), external_data=False)


class OnnxModel:
    """A model that onnxruntime runs on the CPU: token ids (batch, seq_len) to logits.

    Raises StepError if onnxruntime cannot load or run it.
    """

    def __init__(self, place: Path) -> None:
        import onnxruntime

        with _as_step_errors():
            self._session: Any = onnxruntime.InferenceSession(
                str(place), providers=["CPUExecutionProvider"]
            )
        self._input = self._session.get_inputs()[0].name

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """The logits (batch, seq_len, vocabulary) of token ids."""
        with _as_step_errors():
            (logits, *_) = self._session.run(None, {self._input: inputs.cpu().numpy()})
        return torch.from_numpy(logits)


@contextmanager
def _as_step_errors() -> Iterator[None]:
    """The errors of onnxruntime have no base of their own."""
    try:
        yield
    except Exception as error:
        raise StepError(f"onnxruntime: {error}") from error
