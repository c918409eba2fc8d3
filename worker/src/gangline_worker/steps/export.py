"""`python -m gangline_worker.steps.export`: a checkpoint as weights that serve, measured.

- `resume: STEP`: the step whose newest checkpoint is exported. Hyperparameters: those of that job.
- out: `model` (folder): safetensors and `config.json`, with `--format torch-export` also
  `model.pt2`, with `--format onnx` also `model.onnx`; `serving` (folder); `difference` (score).
- `serving` has `serving.json`: size, load time, P50 and P99 of the latency by batch size, memory,
  and the largest difference of the outputs to the checkpoint's; and `checkpoint.json`: its job and
  step.

A model that does not load, or whose outputs are not finite, is reported as such: a gate refuses
it. If the device fails or has no memory left, the step fails, and another try may succeed. Figures
differ from run to run, so they are an output of their own.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors import SafetensorError

from gangline_worker.checkpoint.export import export_weights
from gangline_worker.checkpoint.files import CorruptCheckpoint
from gangline_worker.checkpoint.loader import Checkpoint, WrongCheckpoint
from gangline_worker.steps.folders import StepError, leave_score, output, write_json
from gangline_worker.steps.onnx_model import OnnxModel, need_onnx, write_onnx
from gangline_worker.steps.weights import (
    device_of_rank,
    empty_model,
    load_model,
    save_settings,
    settings,
)
from gangline_worker.training.config import TrainConfig
from gangline_worker.training.model import Transformer

_BATCHES = (1, 8)
_WARM, _TIMES = 3, 30
_FILES = {"torch-export": "model.pt2", "onnx": "model.onnx"}
"""Formats that have a graph beside the weights, and its file."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m gangline_worker.steps.export")
    parser.add_argument("--format", choices=["safetensors", *_FILES], default="safetensors")
    options = parser.parse_args(arguments)
    try:
        if options.format == "onnx":
            need_onnx()
        report = _export(options.format)
    except (StepError, CorruptCheckpoint, WrongCheckpoint, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(f"{report}\n")
    return 0


def _export(form: str) -> dict[str, Any]:
    source = os.environ.get("GANGLINE_RESUME_FROM")
    if source is None:
        raise StepError("there is no checkpoint; give the step `resume: STEP`")
    folder = output("model")
    if folder is None:
        raise StepError("declare the output: `out: {model: folder}`")
    config, device = settings(), device_of_rank()
    checkpoint = Checkpoint(Path(source))
    export_weights(checkpoint, folder)
    save_settings(folder, config)
    try:
        found = _measured(form, folder, checkpoint, config, device)
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise  # of the machine, not of the model: the cache would keep the report
    except (StepError, SafetensorError, RuntimeError, ValueError) as error:
        found = {"format": form, "loads": False, "error": f"{type(error).__name__}: {error}"[:1000]}
    place = output("serving")
    if place is not None:
        write_json(place / "serving.json", found)
        record = checkpoint.record
        write_json(place / "checkpoint.json", {"job_id": record.job_id, "step": record.step})
    if "difference" in found:
        leave_score("difference", found["difference"])
    return found


def _measured(
    form: str, folder: Path, checkpoint: Checkpoint, config: TrainConfig, device: torch.device
) -> dict[str, Any]:
    """The figures of the exported model, as it is loaded. Raises if it cannot be loaded or run."""
    before, began = _memory_before(device), time.perf_counter()
    model: Any = load_model(folder, device)
    weights = sum(tensor.nbytes for tensor in model.state_dict().values())
    if form != "safetensors":
        place = folder / _FILES[form]
        _write_graph(model, form, place, config)
        device = torch.device("cpu")
        before, began = _memory_before(device), time.perf_counter()
        model = OnnxModel(place) if form == "onnx" else torch.export.load(place).module()
    load_s = time.perf_counter() - began
    latencies = [_latency(model, batch, config, device) for batch in _BATCHES]
    return {
        "format": form,
        "loads": True,
        "size_bytes": sum(path.stat().st_size for path in folder.iterdir()),
        "load_s": load_s,
        "memory_bytes": max(weights, _most_memory(device) - before),
        "difference": _difference(model, checkpoint, config, device),
        "latencies": latencies,
    }


def _memory_before(device: torch.device) -> int:
    """Bytes in use now: of the GPU's tensors, or of this process."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    return int(psutil.Process().memory_info().rss)


def _most_memory(device: torch.device) -> int:
    """The most bytes in use since: of the GPU's tensors; of this process, those now."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return int(psutil.Process().memory_info().rss)


def _write_graph(model: Transformer, form: str, place: Path, config: TrainConfig) -> None:
    """The graph of the model for any batch size, on the CPU."""
    example = torch.zeros((2, config.seq_len), dtype=torch.int64)
    shapes = ({0: torch.export.Dim("batch", min=1, max=4096)},)
    program = torch.export.export(model.cpu(), (example,), dynamic_shapes=shapes)
    if form == "onnx":
        write_onnx(program, place)
    else:
        torch.export.save(program, place)


@torch.inference_mode()
def _difference(
    model: Any, checkpoint: Checkpoint, config: TrainConfig, device: torch.device
) -> float:
    """The largest difference of a logit between the exported model and the checkpoint."""
    reference = empty_model(config, device)
    named = {f"model.{name}": tensor for name, tensor in reference.named_parameters()}
    pieces = checkpoint.tensors()
    missing = [name for name in named if name not in pieces]
    if missing:
        raise StepError(f"the checkpoint has no {missing[0]}: give its job's hyperparameters")
    whole = checkpoint.read_whole([pieces[name] for name in sorted(named)])
    for name, tensor in named.items():
        tensor.copy_(whole[name])
    inputs = _inputs(4, config, device)
    found = float((model(inputs) - reference(inputs)).abs().max())
    if not math.isfinite(found):
        raise ValueError("its outputs are not finite numbers")
    return found


@torch.inference_mode()
def _latency(model: Any, batch: int, config: TrainConfig, device: torch.device) -> dict[str, float]:
    inputs = _inputs(batch, config, device)
    times = []
    for number in range(_WARM + _TIMES):
        began = time.perf_counter()
        model(inputs)
        if device.type == "cuda":
            torch.cuda.synchronize()
        if number >= _WARM:
            times.append((time.perf_counter() - began) * 1000)
    times.sort()
    p50, p99 = times[len(times) // 2], times[min(len(times) - 1, int(len(times) * 0.99))]
    return {"batch": batch, "p50_ms": p50, "p99_ms": p99}


def _inputs(batch: int, config: TrainConfig, device: torch.device) -> torch.Tensor:
    drawn = torch.Generator().manual_seed(17)
    return torch.randint(0, 256, (batch, config.seq_len), generator=drawn).to(device)


if __name__ == "__main__":
    raise SystemExit(main())
