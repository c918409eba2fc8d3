"""What an incremental save writes of a state that changed in part.

`python tests/bench/bench_incremental.py [--rounds N] [--json FILE]`. One rank with 806 MB, as each
of two has of 134 M parameters with AdamW's state, in tensors of 8 MB. Each round saves the state
whole, then after none, half and all of its tensors changed; each save may refer to those before.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections import defaultdict
from pathlib import Path

from harness import Context, Result, in_own_process, scratch

TENSORS, TENSOR_FLOATS = 96, 2_100_000
CHANGES = {"unchanged": 0.0, "half": 0.5, "changed": 1.0}

Figures = dict[str, list[float]]


def measure(folder: Path, rounds: int) -> Figures:
    """Bytes written over the state's bytes, and the seconds of each save."""
    import torch

    from gangline_worker.checkpoint.saver import AsyncSaver, SaveResult, SaverIdentity

    tensors = {f"layer.{index:02}": torch.rand(TENSOR_FLOATS) for index in range(TENSORS)}
    figures: Figures = defaultdict(list)
    committed: list[int] = []
    step = 0

    def saved(saver: AsyncSaver) -> SaveResult:
        nonlocal step
        step += 1
        saver.begin(step, tensors, {}, {})
        saver.wait_copied()
        saver.wait()
        (result,) = saver.results()
        if result.error is not None:
            raise RuntimeError(result.error)
        committed.append(step)
        return result

    for attempt in range(1, rounds + 1):
        identity = SaverIdentity(folder / str(attempt), "bench", attempt, 0, 1, full_every=100)
        committed.clear()
        saver = AsyncSaver(identity, lambda _: None, lambda: committed[-1] if committed else None)
        saver.prepare(tensors)
        figures["whole_s"].append(saved(saver).write_s)
        for name, share in CHANGES.items():
            for tensor in [*tensors.values()][: round(share * TENSORS)]:
                tensor.add_(1)
            result = saved(saver)
            figures[f"{name}_ratio"].append(result.written_bytes / result.size_bytes)
            figures[f"{name}_s"].append(result.write_s)
        figures["gb"].append(result.size_bytes / 1e9)
        shutil.rmtree(identity.directory)
    return figures


def run(context: Context) -> list[Result]:
    """What was written over what a whole save writes."""
    figures = in_own_process("bench_incremental", "--rounds", str(context.repeats(3)))

    def seconds(name: str) -> str:
        return f"{sorted(figures[name])[len(figures[name]) // 2]:.2f} s"

    whole = f"{figures['gb'][0]:.2f} GB; a whole save takes {seconds('whole_s')}"
    return [
        context.median(
            f"incremental_{name}_bytes_ratio",
            figures[f"{name}_ratio"],
            "x",
            note=f"{seconds(f'{name}_s')}; {whole}",
        )
        for name in CHANGES
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    with scratch() as folder:
        figures = measure(folder, options.rounds)
    for name, values in sorted(figures.items()):
        print(f"{name:20} {' '.join(f'{value:.3f}' for value in values)}")
    if options.json:
        options.json.write_text(json.dumps(figures))
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # the savers' threads wait for no rank
