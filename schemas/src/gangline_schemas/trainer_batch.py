"""Whether the platform's trainer can share out its batch at every size that a gang may have.

The trainer gives each rank an equal part of `batch_size`, in `accumulation` backward passes, and
refuses a world size that does not divide it. An elastic job would find that out late, when it is
resized. So a submission is checked as far as it names its batch: with `--set` on the trainer's
command line, else in its hyperparameters. Only the trainer knows a `--config` file and the default;
it checks every batch again when it starts.

Cost: O(sizes that the gang may have), for jobs of the trainer alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from gangline_schemas.job import JobSpec
from gangline_schemas.resources import Resources

TRAINER = "gangline_worker.training"
SHOWN = 4
"""So many sizes that do not fit are named."""


def cannot_share(spec: JobSpec) -> str | None:
    """Why the trainer would fail at a size that the gang may have, and the way out.

    None when it would not, when the job runs something else, or when its batch is not named.
    """
    arguments = _arguments(spec)
    batch = None if arguments is None else _setting(spec, arguments, "batch_size")
    if arguments is None or batch is None:
        return None
    accumulation = _setting(spec, arguments, "accumulation") or 1
    sizes = spec.sizes
    together = spec.parallel.tensor * spec.parallel.pipeline if spec.parallel else 1
    bad = [gpus for gpus in sizes if batch % (gpus // together * accumulation)]
    if not bad:
        return None
    shared = f", {together} of them (tensor x pipeline) for each part" if together > 1 else ""
    passes = f" in {accumulation} backward passes (accumulation)" if accumulation > 1 else ""
    good = [gpus for gpus in sizes if not batch % (gpus // together * accumulation)]
    elastic = ", which the gang may have" if spec.resources.min_gpus else ""
    return (
        f"the trainer cannot share out batch_size {batch}{passes} among {_or(bad)} GPUs{shared}"
        f"{elastic}; {_way_out(spec.resources, good)}"
    )


def _arguments(spec: JobSpec) -> Sequence[str] | None:
    """The arguments after the trainer's name on the command line; None: another program runs."""
    words: Sequence[str] = spec.command
    if spec.run is not None:
        try:
            words = shlex.split(spec.run, comments=True)
        except ValueError:
            return None
    for at, word in enumerate(words):
        if word == TRAINER and at and words[at - 1] == "-m":
            return words[at + 1 :]
    return None


def _setting(spec: JobSpec, arguments: Sequence[str], name: str) -> int | None:
    """A setting of the trainer; None when the job does not name it as a plain number."""
    value: object = spec.hyperparameters.get(name)
    for word in arguments:
        given, equals, text = word.removeprefix("--set=").partition("=")
        if equals and given == name:
            value = text
    if isinstance(value, str):
        return int(value) if re.fullmatch(r"[1-9]\d{0,17}", value) else None
    return value if isinstance(value, int) and value > 0 and value is not True else None


def _way_out(resources: Resources, good: Sequence[int]) -> str:
    if not good:
        return "choose a number of GPUs, or a batch_size, so that it divides"
    if len(good) == 1:
        wanted = f"gpus: {good[0]} without min_gpus"
    elif (good[0], good[-1]) == (resources.min_gpus, resources.gpus):
        wanted = f"gpu_counts: {[*good]}"
    else:
        wanted = f"gpus: {good[-1]}, min_gpus: {good[0]} and gpu_counts: {[*good]}"
    return f"give {wanted} under resources, or another batch_size"


def _or(sizes: Sequence[int]) -> str:
    shown = ", ".join(str(gpus) for gpus in sizes[:SHOWN])
    if len(sizes) > SHOWN:
        return f"{shown}, ..."
    return " or ".join(shown.rsplit(", ", 1))
