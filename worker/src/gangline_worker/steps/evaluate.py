"""`python -m gangline_worker.steps.evaluate`: a model, and a baseline, on held-out suites.

- in: `model`, as `export` leaves it; `baseline` likewise, if there is one.
- out: `scores` (folder): `candidate/SUITE.json` and `baseline/SUITE.json` with the score of each
  item; `accuracy` and `loss` (scores): the candidate's means over all items.

Each item is a window of the suite's data, named by a digest of its tokens: other data, another
`seq_len` or seed give other names, so a gate never pairs unlike items. Its score is the share of
bytes that the model predicts right. Both models see the same batches in the same dtype.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 -- torch's own custom
import xxhash

from gangline_worker.data.errors import DataError
from gangline_worker.data.flag import flag
from gangline_worker.data.opening import open_samples
from gangline_worker.data.samples import Batch, Samples
from gangline_worker.data.step_inputs import find
from gangline_worker.reporting import flush, report
from gangline_worker.steps.folders import StepError, given, leave_score, output, write_json
from gangline_worker.steps.weights import device_of_rank, load_model
from gangline_worker.training.model import Transformer

HELD_OUT = 1 << 41
"""In the endless order of samples: behind what any run reaches, and the batch that validates."""
_SEED = 17


@dataclass(frozen=True)
class Measured:
    """A model in one suite: the score of each item by name, and the mean loss in nats a byte."""

    scores: dict[str, float]
    loss: float

    @property
    def accuracy(self) -> float:
        """The mean score."""
        return sum(self.scores.values()) / len(self.scores)


@torch.inference_mode()
def measure(model: Transformer, samples: Samples, items: int, batch_size: int) -> Measured:
    """The model on the first held-out items."""
    scores: dict[str, float] = {}
    seen = Counter[str]()
    lost = 0.0
    device = next(model.parameters()).device
    for start in range(0, items, batch_size):
        size = min(batch_size, items - start)
        batch = samples.batch(HELD_OUT + start, size, 0, 1)
        inputs = torch.from_numpy(batch.inputs).to(device)
        targets = torch.from_numpy(batch.targets).to(device)
        logits = model(inputs).float()
        right = (logits.argmax(-1) == targets).float().mean(-1)
        scores |= zip(_names(batch, seen), right.double().cpu().tolist(), strict=True)
        lost += float(F.cross_entropy(logits.flatten(0, 1), targets.flatten())) * size
    return Measured(scores, lost / items)


def _names(batch: Batch, seen: Counter[str]) -> list[str]:
    """The name of each item; the second one with the same tokens ends in -2."""
    found: list[str] = []
    for inputs, targets in zip(batch.inputs, batch.targets, strict=True):
        name = xxhash.xxh3_64_hexdigest(inputs.tobytes() + targets.tobytes())
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m gangline_worker.steps.evaluate")
    parser.add_argument(
        "--suite", action="append", metavar="NAME=DATA", help="text, a folder or a snapshot"
    )
    parser.add_argument("--items", type=_whole, default=512, help="of each suite")
    parser.add_argument("--batch-size", type=_whole, default=32)
    options = parser.parse_args(arguments)
    try:
        _evaluate(options)
    except (StepError, DataError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    flush()
    return 0


def _evaluate(options: argparse.Namespace) -> None:
    device = device_of_rank()
    places = {"candidate": given("model"), "baseline": find("baseline")}
    models = {who: load_model(at, device) for who, at in places.items() if at is not None}
    named = [_suite(text) for text in options.suite or ["held-out=stdlib"]]
    suites = dict(named)
    if len(suites) < len(named):
        raise StepError("--suite: two suites have one name; give each its own")
    found: dict[str, dict[str, Measured]] = {who: {} for who in models}
    for name, source in suites.items():
        config = models["candidate"].config
        samples = open_samples(source, seq_len=config.seq_len, seed=_SEED, complain=flag)
        for who, model in models.items():
            measured = measure(model, samples, options.items, options.batch_size)
            found[who][name] = measured
            sys.stdout.write(
                f"{name}: {who} accuracy {measured.accuracy:.4f}, loss {measured.loss:.4f}\n"
            )
    _leave(found, options, str(device.type))


def _leave(found: dict[str, dict[str, Measured]], options: argparse.Namespace, device: str) -> None:
    details: dict[str, Any] = {"batch_size": options.batch_size, "dtype": "float32"}
    folder = output("scores")
    if folder is not None:
        for who, suites in found.items():
            for name, one in suites.items():
                value = {"suite": name, "items": one.scores, "loss": one.loss, "details": details}
                write_json(folder / who / f"{name}.json", {**value, "device": device})
    mine = found["candidate"].values()
    accuracy = sum(one.accuracy for one in mine) / len(mine)
    loss = sum(one.loss for one in mine) / len(mine)
    leave_score("accuracy", accuracy)
    leave_score("loss", loss)
    report({"accuracy": accuracy, "eval_loss": loss}, 0)


def _whole(text: str) -> int:
    """A whole number above 0. Raises ArgumentTypeError."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return int(text)


def _suite(text: str) -> tuple[str, str]:
    name, given_, source = text.partition("=")
    if not given_ or not name.replace("-", "").replace("_", "").isalnum():
        raise StepError(f"--suite {text}: write it as NAME=DATA")
    return name, source


if __name__ == "__main__":
    raise SystemExit(main())
