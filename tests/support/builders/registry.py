"""The registry driven by hand, and what users and other services say to it."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from random import Random
from typing import Any

from gangline_registry.core.decide import RegistryDecider
from gangline_registry.core.model import (
    Compare,
    Compared,
    Failed,
    Made,
    MakeVersion,
    Pointer,
    Project,
    Projected,
    Watch,
)
from gangline_registry.core.snapshot import fingerprint
from gangline_registry.core.state import RegistryState
from gangline_schemas.base import Event
from gangline_schemas.events.checkpoints import CheckpointPromoted
from gangline_schemas.events.model_requests import (
    EvaluationRequested,
    GateRequested,
    ModelPromotionRequested,
    RollbackRequested,
    SnapshotProfiled,
    VersionRequested,
)
from gangline_schemas.events.registry import AliasMoved, GateSet
from gangline_schemas.gate_file import Gate
from gangline_schemas.models import (
    CheckpointOf,
    Evaluation,
    Override,
    Paired,
    ProfileRef,
    SuiteComparison,
)
from support.harnesses.decider_run import START, DeciderRun

TEAM, MODEL, ALIAS = "nlp", "summarizer", "champion"
OLD = "sales@xxh3-" + "1" * 32


def gate(**fields: Any) -> Gate:
    """A gate with one critical suite, `qa`, that must be better."""
    given = {
        "team": TEAM, "model": MODEL, "aliases": [ALIAS], "baseline": "current",
        "first": "accept", "suites": {"qa": {"rule": "better"}},
    }  # fmt: skip
    return Gate.model_validate(given | fields)


def gate_set(**fields: Any) -> GateSet:
    """The registry's news of a gate."""
    given = gate(**fields)
    return GateSet(config=given, digest=given.digest, user="anna")


def moved(version: int, *, files: bool = False, team: str = TEAM) -> AliasMoved:
    """The alias points to a version, which is the checkpoint of step 100 of its own job."""
    job = f"job-{version}"
    checkpoint = CheckpointOf(
        job_id=job, attempt=2, step=100, world_size=2, commit_key=f"{job}/100"
    )
    return AliasMoved(
        team=team, model=MODEL, alias=ALIAS, number=version, from_version=0, to_version=version,
        expected=0, kind="gate", by="anna", checkpoint=None if files else checkpoint,
    )  # fmt: skip


def evaluation(text: str, items: int = 1319, mean: float = 0.6, **fields: Any) -> Evaluation:
    """Scores known by a text: equal texts are equal scores."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Evaluation(
        digest=digest, key=f"registry/{digest}", items=items, binary=True, mean=mean, **fields
    )


def profile(days_old: float = 0.0) -> ProfileRef:
    """A profile of data that were made so long before the start."""
    return ProfileRef(
        digest="a" * 64, key="registry/profiles/a", rows=1000, columns=2,
        made_at=START - timedelta(days=days_old),
    )  # fmt: skip


class RegistryRun(DeciderRun[RegistryState, Watch]):
    """The decider, and short words for its inputs."""

    def __init__(self, given: Gate | None = None) -> None:
        super().__init__(RegistryDecider(), fingerprint)
        self.tick()
        if given is not None:
            self.feed(GateRequested(config=given, user="anna"))

    @property
    def pointer(self) -> Pointer:
        """Where the alias points to."""
        return self.state.aliases[f"{TEAM}/{MODEL}/{ALIAS}"]

    def version(self, number: int, *, snapshot: str | None = None, **scores: str) -> None:
        """Register a promoted checkpoint of a job of its own, with evaluations by suite."""
        self.register(f"job-{number}", number, snapshot=snapshot)
        for suite, text in scores.items():
            self.report(number, suite, evaluation(text))

    def register(self, job: str, number: int, *, snapshot: str | None = None) -> None:
        """Register the promoted checkpoint of a job, which MLflow gives this number if asked."""
        promoted = CheckpointPromoted(
            job_id=job, attempt=1, step=100, run=f"{job}-p", world_size=2, commit_key=f"{job}/100"
        )
        self.feed(promoted)
        wanted = VersionRequested(team=TEAM, model=MODEL, job_id=job, snapshot=snapshot, user="ben")
        self.feed(wanted)
        self.finish_registrations(number)

    def finish_registrations(self, number: int) -> None:
        """MLflow has the versions that it is asked for, by this number."""
        for key, one in self.effects().items():
            if isinstance(one, MakeVersion):
                self.done(key, Made(number))

    def report(self, number: int, suite: str, scored: Evaluation) -> list[Event]:
        """A version's scores."""
        asked = EvaluationRequested(
            team=TEAM, model=MODEL, version=number, suite=suite, evaluation=scored, user="ben"
        )
        return self.feed(asked)

    def compare(self, wins: int, losses: int) -> list[Event]:
        """Do all comparisons that are wanted, with this table."""
        wanted = [key for key, one in self.effects().items() if isinstance(one, Compare)]
        return [event for key in wanted for event in self._compare(key, wins, losses)]

    def compare_one(self, choose: Random, wins: int, losses: int) -> list[Event]:
        """Do one of the comparisons that are wanted, if there is any."""
        wanted = [key for key, one in self.effects().items() if isinstance(one, Compare)]
        return self._compare(choose.choice(wanted), wins, losses) if wanted else []

    def _compare(self, key: str, wins: int, losses: int) -> list[Event]:
        one = self.effects().get(key)
        if not isinstance(one, Compare):
            return []
        compared = SuiteComparison(
            suite=one.suite,
            candidate=one.candidate.digest,
            baseline=one.baseline.digest,
            paired=Paired(items=one.candidate.items, wins=wins, losses=losses),
        )
        return self.done(key, Compared(compared))

    def promote(
        self, number: int, *, expected: int | None = None, reason: str | None = None
    ) -> list[Event]:
        """Ask for the alias; with a reason whatever the gate says."""
        override = None if reason is None else Override(person="eve", reason=reason)
        asked = ModelPromotionRequested(
            team=TEAM, model=MODEL, alias=ALIAS, version=number, expected=expected,
            override=override, user="ben",
        )  # fmt: skip
        return self.feed(asked)

    def roll_back(self, **fields: Any) -> list[Event]:
        """Ask for a rollback."""
        asked = RollbackRequested(team=TEAM, model=MODEL, alias=ALIAS, user="ben", **fields)
        return self.feed(asked)

    def profiled(self, snapshot: str, days_old: float = 0.0) -> list[Event]:
        """A snapshot got its profile."""
        made = profile(days_old)
        return self.feed(SnapshotProfiled(team=TEAM, snapshot=snapshot, profile=made))

    def project(self, result: Projected | Failed | None = None) -> list[Event]:
        """MLflow's table is written, or not."""
        found: list[Event] = []
        for key, one in self.effects().items():
            if isinstance(one, Project):
                found += self.done(key, result or Projected())
        return found
