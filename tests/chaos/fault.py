"""What a fault is, and what must come of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from chaos.world import Attack
from support.harnesses.log_watch import PACED

Found = Literal["", "checkpoint.corrupted", "job.flagged", "data_refetched_blocks"]
Place = Literal["one machine", "apart", "joined"]


def no_data(_data_dir: Path) -> Mapping[str, object]:
    """The text that the trainer brings along."""
    return {}


@dataclass(frozen=True)
class Fault:
    """`do` does it to a job that trains; the rest is what must come of it.

    - `restarts`: the job had another attempt. None: it may have had one.
    - `found`: what was damaged is found, as this event or by this metric.
    - `gaps`: steps may be missing from what was reported.
    - `review`: the job fails and is flagged for a person to look at.
    - `place`: the platform that it takes (places.py). `disk`: with disks of the nodes' own.
    - `data`: further hyperparameters of the job, and of the undisturbed one, by the data folder.
    - `command`: what the job runs; the undisturbed one runs the trainer, without pauses.
    """

    name: str
    do: Callable[[Attack], None]
    restarts: bool | None = True
    found: Found = ""
    gaps: bool = False
    review: bool = False
    place: Place = "one machine"
    disk: bool = False
    data: Callable[[Path], Mapping[str, object]] = no_data
    command: Sequence[str] = tuple(PACED)
