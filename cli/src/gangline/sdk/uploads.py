"""Uploads of runs that were kept on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from gangline.sdk.calls import Calls
from gangline.tracking.sync import Synced, sync_folders


class Uploads(Calls):
    """Uploads of runs that were kept on disk."""

    def sync(
        self,
        *folders: Path | str,
        team: str | None = None,
        remove: bool = False,
        notice: Callable[[str], None] = lambda _: None,
    ) -> Iterator[Synced]:
        """Upload the runs of folders; each is given when it is done. Again is safe.

        `team`: of runs without one. `remove`: remove uploaded folders. If a run is refused, that is
        raised as CliError once the others are uploaded.
        """
        places = [Path(folder) for folder in folders]
        return sync_folders(self._transport, places, team=team, remove=remove, notice=notice)
