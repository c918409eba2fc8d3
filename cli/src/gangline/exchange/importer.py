"""`gangline import`: runs of a source become MLflow runs of a team.

Each run has two tags. `gangline.import.source` names its origin, so that a second import finds it;
`gangline.import.digest` is that of its content, set when all of it is there. With the same digest
nothing is sent but a link to its parent that is missing. After an interruption, or when the source
has grown, all is sent again to the same run: a point that is there already changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

import httpx

from gangline.errors import CliError, ExitCode
from gangline.exchange.names import Names, fitting
from gangline.exchange.records import PARENT, Source, SourceError, SourceRun
from gangline.sdk.mlflow import PER_BATCH, Mlflow
from gangline.tracking.values import PARAM_CHARS, TAG_CHARS, storable
from gangline_schemas.limits import LATEST

SOURCE_TAG, DIGEST_TAG = "gangline.import.source", "gangline.import.digest"
PROJECT = "imported"
"""The experiment of runs whose source names none."""
Outcome = Literal["imported", "updated", "unchanged", "failed"]


@dataclass
class ImportedRun:
    """How one run of the source went; `run_id` is that of the MLflow run."""

    name: str
    project: str
    outcome: Outcome
    run_id: str | None = None
    points: int = 0


@dataclass
class Imported:
    """All runs, how many things of each kind were left out, and what was wrong."""

    runs: list[ImportedRun] = field(default_factory=list)
    left: Counter[str] = field(default_factory=Counter)
    troubles: list[str] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    """MLflow's name of each metric that must have another one."""


@dataclass
class Importer:
    """Imports into one team. `progress` gets a line about how far it is, often."""

    mlflow: Mlflow
    project: str | None = None
    progress: Callable[[str], None] = lambda _: None
    _experiments: dict[str, str] = field(default_factory=dict)
    _ids: dict[str, str] = field(default_factory=dict)
    """MLflow's run by the source's."""
    _linked: set[str] = field(default_factory=set)
    """MLflow's runs that had a parent before this import."""

    def run(self, source: Source) -> Imported:
        """Import what can be; a run that the server refuses or fails on (500) is a trouble.

        Raises CliError if the platform is away, or if it refuses the token.
        """
        done = Imported()
        children: list[tuple[ImportedRun, str]] = []
        for found in source.runs():
            if isinstance(found, SourceError):
                done.troubles.append(str(found))
                continue
            parent = found.tags.get(PARENT)
            outcome = self._import(found, done)
            done.runs.append(outcome)
            if outcome.run_id is not None:
                self._ids[found.source_id.rsplit("/", 1)[-1]] = outcome.run_id
                if parent is not None:
                    children.append((outcome, parent))
        for child, parent in children:
            self._link(child, parent, done)
        return done

    def _link(self, child: ImportedRun, parent: str, done: Imported) -> None:
        """Link a run to its parent. An unchanged one is linked only if it has no parent yet."""
        again = child.outcome == "unchanged"
        if child.run_id is None or (again and child.run_id in self._linked):
            return
        if parent in self._ids:
            self.mlflow.log_texts(child.run_id, {}, {PARENT: self._ids[parent]})
        elif not again:
            done.left["links to parent runs that are not in the source"] += 1

    def _import(self, run: SourceRun, done: Imported) -> ImportedRun:
        project = storable(self.project or run.project or PROJECT)
        outcome = ImportedRun(run.name, project, "failed")
        digest, points = self._digest(run)
        outcome.points = points
        run.name, run.started_ms = storable(run.name), _time(run.started_ms)
        run.ended_ms = _time(run.ended_ms)
        params = fitting(run.params, PARAM_CHARS, "parameters", run.left)
        tags = fitting(run.tags, TAG_CHARS, "tags", run.left)
        for name in (PARENT, SOURCE_TAG, DIGEST_TAG):
            tags.pop(name, None)
        done.left += run.left
        done.troubles += run.troubles
        try:
            done.renamed |= self._send(run, digest, params, tags, outcome)
        except CliError as error:
            if (
                error.code is not ExitCode.USAGE
                and error.status != httpx.codes.INTERNAL_SERVER_ERROR
            ):
                raise
            done.troubles.append(f"{run.name}: {error.message}")
            outcome.outcome = "failed"
        if outcome.outcome != "failed" and run.troubles and not points:
            outcome.outcome = "failed"
        return outcome

    def _send(
        self,
        run: SourceRun,
        digest: str,
        params: dict[str, str],
        tags: dict[str, str],
        outcome: ImportedRun,
    ) -> dict[str, str]:
        """Gives the names that were changed."""
        experiment = self._experiment(outcome.project)
        origin = hashlib.sha256(run.source_id.encode(errors="surrogatepass")).hexdigest()
        where = f"tags.`{SOURCE_TAG}` = '{origin}'"
        known = next(self.mlflow.search([experiment], where), None)
        if known is not None and PARENT in known.tags:
            self._linked.add(known.run_id)
        if known is not None and known.tags.get(DIGEST_TAG) == digest:
            outcome.run_id, outcome.outcome = known.run_id, "unchanged"
            return {}
        if known is None:
            outcome.run_id = self.mlflow.create(
                experiment, run.name, run.started_ms or 0, {SOURCE_TAG: origin}
            )
        else:
            outcome.run_id = known.run_id
        self.mlflow.log_texts(outcome.run_id, params, tags)
        renamed = self._send_points(run, outcome.run_id)
        self.mlflow.end(outcome.run_id, run.state, run.ended_ms)
        self.mlflow.log_texts(outcome.run_id, {}, {DIGEST_TAG: digest})
        outcome.outcome = "imported" if known is None else "updated"
        return renamed

    def _send_points(self, run: SourceRun, run_id: str) -> dict[str, str]:
        names, sent = Names(), 0
        points = (point._replace(name=names.of(point.name)) for point in run.points())
        while some := [*islice(points, PER_BATCH)]:
            self.mlflow.log_points(run_id, some)
            sent += len(some)
            self.progress(f"{run.name}: {sent:,} points sent")
        return names.changed

    def _digest(self, run: SourceRun) -> tuple[str, int]:
        """Of all content, and the number of points. Afterwards the run is complete."""
        digest, count = hashlib.sha256(), 0
        for point in run.points():
            name = point.name.encode(errors="surrogatepass")
            digest.update(struct.pack("<Iqqd", len(name), point.step, point.time_ms, point.value))
            digest.update(name)
            count += 1
            if count % PER_BATCH == 0:
                self.progress(f"{run.name}: {count:,} points read")
        facts = [run.name, run.state, run.started_ms, run.ended_ms, {**run.params}, {**run.tags}]
        digest.update(json.dumps(facts, sort_keys=True).encode())
        return digest.hexdigest(), count

    def _experiment(self, name: str) -> str:
        if name not in self._experiments:
            self._experiments[name] = self.mlflow.experiment(name)
        return self._experiments[name]


def _time(ms: int | None) -> int | None:
    """A damaged file may hold any number; None if it is outside the dates that are stored."""
    return ms if ms is not None and 0 <= ms < LATEST.timestamp() * 1000 else None
