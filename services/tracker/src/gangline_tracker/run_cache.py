"""The rows of `runs` that may still change, so that a batch rarely has to read them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, MutableMapping, Sequence

from clickhouse_connect.driver.client import Client

from gangline_tracker.runs import Run

LIMIT = 20_000
"""Rows kept in memory, about 40 MB at 2 KB a spec."""
_CHUNK = 1000
_MODELS = (
    "SELECT subject, argMax(JSONExtractString(data, 'node', 'gpus', 1, 'model'), offset) "
    "FROM gangline.events WHERE type = 'node.admitted' GROUP BY subject"
)
_COLUMNS = ", ".join(Run.__dataclass_fields__)


class RunCache:
    """Finds rows in memory, else in the table. Belongs to one thread, as its client does."""

    def __init__(self, client: Client, limit: int = LIMIT) -> None:
        self._client = client
        self._limit = limit
        self._runs: OrderedDict[str, Run] = OrderedDict()
        self._models: dict[str, str] | None = None

    def find(self, jobs: Sequence[str]) -> Mapping[str, Run]:
        """The rows of these jobs as far as they exist, with few queries for what is not cached."""
        found = {job: self._runs[job] for job in jobs if job in self._runs}
        missing = [job for job in jobs if job not in found]
        for start in range(0, len(missing), _CHUNK):
            found.update(self._load(missing[start : start + _CHUNK]))
        self.keep(found.values())
        return found

    def keep(self, runs: Iterable[Run]) -> None:
        """Remember rows as they now are; the longest unused are forgotten."""
        for run in runs:
            self._runs[run.job_id] = run
            self._runs.move_to_end(run.job_id)
        while len(self._runs) > self._limit:
            self._runs.popitem(last=False)

    def models(self) -> MutableMapping[str, str]:
        """The model of each node's GPUs; those that were admitted before are read once."""
        if self._models is None:
            answer = self._client.query(_MODELS)
            self._models = {str(node): str(model) for node, model in answer.result_rows}
        return self._models

    def _load(self, jobs: list[str]) -> dict[str, Run]:
        answer = self._client.query(
            f"SELECT {_COLUMNS} FROM gangline.runs FINAL WHERE job_id IN {{jobs:Array(String)}}",  # noqa: S608
            parameters={"jobs": jobs},
            tz_mode="aware",
        )
        return {row["job_id"]: Run(**row) for row in answer.named_results()}
