"""Tags that MLflow's clients set on jobs' own runs, as events: the gateway's filters find these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import ValidationError

from gangline_mlflow.job_table import JobTable
from gangline_schemas.events.metrics import TagsLogged
from gangline_schemas.mlflow_workspace import team_of

_SYSTEM = ("mlflow.", "gangline.")


def tag_events(
    table: JobTable, run_id: str, tags: Mapping[str, str | None]
) -> Iterator[TagsLogged]:
    """An event for each tag (None: removed) of the own run of a job; none for other runs.

    The platform's tags are not among them, nor those that an event cannot hold.
    """
    own = {name: value for name, value in tags.items() if not name.startswith(_SYSTEM)}
    for run, job_id, workspace in table.own_runs([run_id]) if own else ():
        for name, value in own.items():
            try:
                yield TagsLogged(
                    run_id=run, job_id=job_id, team=team_of(workspace), tags={name: value}
                )
            except ValidationError:
                continue
