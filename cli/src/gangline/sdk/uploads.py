"""Uploads of runs that were kept on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from gangline.sdk.calls import Calls
from gangline.tracking.sync import Synced, sync_folder


class Uploads(Calls):
    """Uploads of runs that were kept on disk."""

    def sync(
        self,
        folder: Path | str,
        *,
        team: str | None = None,
        remove: bool = False,
        notice: Callable[[str], None] = lambda _: None,
    ) -> Iterator[Synced]:
        """Upload the runs of a folder; each is given when it is done. Again is safe.

        `team`: for runs that name none. `remove`: folders go once they are uploaded.
        """
        return sync_folder(self._transport, Path(folder), team=team, remove=remove, notice=notice)
