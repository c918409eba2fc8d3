"""Moments, and the keys of gangs and ranks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple


class Moment(NamedTuple):
    """A point in time: `mono_s` for durations, `utc` for what others wrote."""

    mono_s: float
    utc: datetime


@dataclass(frozen=True, slots=True, order=True)
class GangKey:
    """One attempt of a job."""

    job_id: str
    attempt: int


@dataclass(frozen=True, slots=True, order=True)
class RankKey:
    """One rank of one attempt."""

    gang: GangKey
    rank: int
