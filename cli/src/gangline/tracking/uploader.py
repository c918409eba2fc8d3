"""Uploads a run's folder, in order. A live run's thread and `gangline sync` do it alike.

A batch that was not acknowledged is sent again. That changes nothing on the server: rows of
metrics are the same rows, parameters and tags have the same values, and the run itself is found by
a tag with the client's id.

If the server fails on a batch each time (500), the batch is divided. An item on which it still
fails is left out, so that it does not hold up the rest; after `MOST_FAULTY` of them uploads end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from gangline.tracking.server import CLIENT_TAG, Faulty, Refused, TrackingServer
from gangline.tracking.spool import Batch, Spool

ItemT = TypeVar("ItemT")
FIRST_RETRY_S, LONGEST_RETRY_S = 0.5, 10.0
"""Pauses while the server is away."""
_REASON_CHARS: Final = 300
MOST_FAULTY: Final = 10
"""If the server fails on more items than this, the items are not the cause."""

_GONE = frozenset({"RESOURCE_DOES_NOT_EXIST", "INVALID_STATE"})
_NO_RIGHTS = frozenset({401, 403})


class Uploader:
    """Uploads one folder to one server."""

    def __init__(
        self,
        spool: Spool,
        server: TrackingServer,
        note: Callable[[str], None],
        *,
        keep: bool,
        tries: int,
        fresh: bool = False,
    ) -> None:
        """`keep`: uploaded parts stay on disk. `fresh`: no server can know this run yet.

        `tries`: so often a batch is sent whole on which the server fails.
        """
        self._spool, self._server, self._note = spool, server, note
        self._keep, self._fresh, self._tries = keep, fresh, tries
        self._failed_tries = self._faulty_items = 0
        self.points = 0
        self.bytes = 0
        self.url: str | None = None
        spool.begin(server.url)

    @property
    def run_id(self) -> str | None:
        """The run's id on the server, once that is known."""
        return self._spool.uploaded.run_id

    @property
    def done(self) -> bool:
        """Whether the run's end was uploaded."""
        return self._spool.uploaded.done

    def enter(self) -> str:
        """Find the run on the server, or make it; gives its id. Raises Away or Refused."""
        header = self._spool.header
        team = self._server.enter(self._spool.uploaded.team)
        run_id = self.run_id or header.run_id
        if run_id is None:
            experiment = header.experiment or f"{team}/{header.project}"
            experiment_id = self._server.experiment(experiment)
            fresh, self._fresh = self._fresh, False
            if not fresh:
                run_id = self._server.find_run(experiment_id, header.client_id)
            if run_id is None:
                tags = {**header.tags, CLIENT_TAG: header.client_id}
                run_id = self._server.create_run(
                    experiment_id, header.name, header.started_ms, tags
                )
            self.url = self._server.page_of(experiment_id, run_id)
        elif self.url is None:
            info = self._info(run_id)
            self.url = self._server.page_of(str(info["experiment_id"]), run_id)
        if self.run_id != run_id:
            if header.run_id is not None and header.tags:
                self._server.set_tags(run_id, [*header.tags.items()])
            self._note_place(run_id=run_id, team=team)
        return run_id

    def _info(self, run_id: str) -> dict[str, Any]:
        try:
            return self._server.run_info(run_id)
        except Refused as refused:
            if refused.code in _GONE and not self._spool.header.sets_status:
                # The platform makes it when it admits the job, which may be a moment ago.
                raise Faulty(f"{self._server.url}: the job's run is not there yet") from None
            raise

    def step(self) -> bool:
        """Upload the next batch; False: there is none. Raises Away or Refused."""
        run_id = self.enter() if self.url is None or self.run_id is None else self.run_id
        batch = self._spool.next_batch()
        if batch is None:
            return False
        try:
            done = self._send(run_id, batch)
        except Faulty:
            self._failed_tries += 1
            raise
        self._failed_tries = 0
        self.bytes += batch.size
        self.points += len(batch.metrics)
        self._note_place(segment=batch.segment, offset=batch.offset, done=done or self.done)
        return True

    def end_killed(self) -> None:
        """End a run whose process was killed, at the time of its last line."""
        if self._spool.header.sets_status:
            self._server.update_run(self.enter(), "KILLED", self._spool.last_write_ms)
        self._note_place(done=True)

    def _note_place(self, **changed: object) -> None:
        self._spool.note(self._spool.uploaded.model_copy(update=changed), keep=self._keep)

    def _send(self, run_id: str, batch: Batch) -> bool:
        """Send one batch; True: it was the run's end. Raises Away or Refused."""
        if batch.record is None:
            self._divide(batch.metrics, partial(self._server.log_metrics, run_id), _key)
            return False
        match batch.record:
            case ["params", dict(params)]:
                self._divide([*params.items()], partial(self._server.log_params, run_id), _first)
            case ["tags", dict(tags)]:
                self._divide([*tags.items()], partial(self._server.set_tags, run_id), _first)
            case ["file", str(kept), str(name)]:
                self._divide([(kept, name)], partial(self._put_file, run_id), _second)
            case ["status", str(status), int() | None as end_ms]:
                self._server.update_run(run_id, status, end_ms)
                return end_ms is not None
            case ["over"]:
                return True
            case _:
                self._note("left out: a damaged line of the log")
        return False

    def _put_file(self, run_id: str, files: Sequence[tuple[str, str]]) -> None:
        for kept, name in files:
            file = self._spool.folder / "files" / kept
            if Path(kept).name != kept or file.is_symlink():
                self._note(f"left out: {name}: its file is not in the run's folder")
            elif file.exists():  # or it was uploaded, and the place was not noted any more
                self._server.put_file(run_id, file, name, self._sent)
                if not self._keep:
                    file.unlink()

    def _sent(self, size: int) -> None:
        self.bytes += size

    def _divide(
        self,
        items: Sequence[ItemT],
        send: Callable[[Sequence[ItemT]], None],
        key: Callable[[ItemT], str],
    ) -> None:
        """Send items; if they are refused, all except those that are at fault, which it names."""
        try:
            send(items)
        except (Faulty, Refused) as error:
            if not self._may_divide(error):
                raise
            if len(items) == 1:
                self._count_faulty(error)
                reason = str(error).splitlines()[0][:_REASON_CHARS]
                self._note(f"left out: {key(items[0])}: {reason}")
                return
            half = len(items) // 2
            self._divide(items[:half], send, key)
            self._divide(items[half:], send, key)

    def _may_divide(self, error: Faulty | Refused) -> bool:
        if isinstance(error, Faulty):
            return self._failed_tries >= self._tries - 1
        return error.status not in _NO_RIGHTS and error.code not in _GONE

    def _count_faulty(self, error: Faulty | Refused) -> None:
        """Raises Refused if too many items were left out since the server failed on them."""
        self._faulty_items += isinstance(error, Faulty)
        if self._faulty_items > MOST_FAULTY:
            raise Refused(500, "", f"the server fails on too much of the run: {error}")


def _first(pair: tuple[str, str]) -> str:
    return pair[0]


def _second(pair: tuple[str, str]) -> str:
    return pair[1]


def _key(metric: bytes) -> str:
    try:
        return str(json.loads(metric)["key"])
    except (ValueError, LookupError, TypeError):
        return "a damaged line"
