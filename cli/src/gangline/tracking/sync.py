"""Uploads the folders that runs left: offline ones, and those of processes that were killed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

from gangline.errors import CliError, ExitCode
from gangline.render import size
from gangline.tracking.server import Away, Faulty, Refused, TrackingServer
from gangline.tracking.spool import Damaged, Spool, runs_below
from gangline.tracking.uploader import FIRST_RETRY_S, LONGEST_RETRY_S, Uploader
from gangline.transport import Transport

TRIES: Final = 7
PROGRESS_S: Final = 2.0
SHOWN: Final = 10
"""So many runs that were refused are named."""
IN_USE, UPLOADED, THERE = "in use", "uploaded", "uploaded before"


class Synced(BaseModel):
    """The outcome for one folder."""

    model_config = ConfigDict(frozen=True)

    folder: Path
    state: str
    """in use (by its script or another upload: nothing was sent), uploaded, uploaded before."""
    run_id: str | None = None
    url: str | None = None
    points: int = 0
    """Metrics that were sent now."""


def sync_folders(
    transport: Transport,
    folders: Sequence[Path],
    *,
    team: str | None = None,
    remove: bool = False,
    notice: Callable[[str], None] = lambda _: None,
) -> Iterator[Synced]:
    """Upload runs' folders, or all that lie in `folders`; again is safe, and sends nothing twice.

    `team`: of runs without one. `remove`: remove uploaded folders. `notice` gets lines of
    progress. Raises CliError if a folder does not exist, and if the platform stays away
    (what is uploaded by then counts). If it refuses a run or a folder is damaged, that is raised
    once the others are uploaded.
    """
    places = [place for folder in folders for place in _runs_in(folder)]
    refused: list[str] = []
    for place in places:
        try:
            spool = Spool.take(place)
            if spool is None:
                yield Synced(folder=place, state=IN_USE)
                continue
            try:
                server = TrackingServer(transport, team=spool.header.team or team)
                uploader = Uploader(spool, server, notice, keep=True, tries=TRIES)
                synced = _sync(uploader, spool, notice)
            finally:
                spool.close()
        except (Damaged, Refused) as error:
            refused.append(f"{place}: {error}")
            continue
        if remove:
            shutil.rmtree(place, ignore_errors=True)
        yield synced
    if refused:
        more = [f"and {len(refused) - SHOWN:,} more"] if len(refused) > SHOWN else []
        raise CliError("\n  ".join(refused[:SHOWN] + more))


def _runs_in(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise CliError(f"there is no folder {folder}", "name the folder of a run", ExitCode.USAGE)
    found = runs_below(folder)
    if not found:
        raise CliError(f"{folder} holds no runs", "give a folder that a run left", ExitCode.USAGE)
    return found


def _sync(
    uploader: Uploader,
    spool: Spool,
    notice: Callable[[str], None],
) -> Synced:
    before = uploader.done
    progress = _Progress(spool, notice)
    tries = 0
    while True:
        try:
            if uploader.step():
                tries = 0
                progress.show()
                continue
            if not uploader.done:
                uploader.end_killed()
        except Away as away:
            tries += 1
            if tries >= TRIES and isinstance(away, Faulty):
                raise Refused(500, "", str(away)) from None
            if tries >= TRIES:
                raise CliError(
                    f"{spool.folder}: {away}", "run the command again: it continues there"
                ) from None
            wait_s = max(away.wait_s, min(LONGEST_RETRY_S, FIRST_RETRY_S * 2 ** (tries - 1)))
            notice(f"{away}; trying again in {wait_s:g} s")
            time.sleep(wait_s)
        else:
            break
    state = THERE if before and not uploader.points else UPLOADED
    return Synced(
        folder=spool.folder,
        state=state,
        run_id=uploader.run_id,
        url=uploader.url,
        points=uploader.points,
    )


class _Progress:
    """A line every `PROGRESS_S`."""

    def __init__(self, spool: Spool, notice: Callable[[str], None]) -> None:
        self._spool, self._notice = spool, notice
        self._all = spool.left
        self._due = time.monotonic() + PROGRESS_S

    def show(self) -> None:
        """Say how far it is, if a line is due."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + PROGRESS_S
        left = self._spool.left
        share = 1 - left / self._all if self._all else 1.0
        self._notice(f"{self._spool.folder.name}: {share:.0%} of {size(self._all)}")
