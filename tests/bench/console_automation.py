"""A study, a pipeline with a run, and a gated model in the log of `console_cluster.py`."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from gangline_pipelines.core.naming import run_id
from gangline_schemas.base import Event
from gangline_schemas.events.pipelines import PipelineConfigured, RunCause, RunStarted
from gangline_schemas.events.registry import GateSet
from gangline_schemas.events.studies import (
    StudyCreated,
    TrialCompleted,
    TrialMeasured,
    TrialProposed,
    TrialStarted,
)
from gangline_schemas.pipeline_file import PipelineSpec
from gangline_schemas.study_file import StudySpec
from support.harnesses.console_tour import MODEL_GATE, PIPELINE, STUDY

STUDY_ID, TRIALS, EVALUATIONS = "lr-sweep-0000000001", 200, 20
CAUSE = RunCause(kind="manual", trigger="manual", subject="1")
PIPELINE_RUN = run_id("default", "nightly", CAUSE.trigger, CAUSE.subject)
Say = Callable[[Event, str, datetime], None]


def automation(say: Say, now: datetime) -> None:
    """Write their events; the study has completed trials with 20 evaluations each."""
    began = now - timedelta(hours=8)
    spec = StudySpec.model_validate({**STUDY, "limits": {"trials": TRIALS, "parallel": 8}})
    say(
        StudyCreated(study_id=STUDY_ID, spec=spec, user="ann", seed=1, created_at=began),
        STUDY_ID,
        began,
    )
    for number in range(TRIALS):
        _trial(say, number, began + timedelta(minutes=2 * number))
    pipeline = PipelineSpec.model_validate(PIPELINE)
    say(PipelineConfigured(revision=1, spec=pipeline, user="ann"), "nightly", began)
    started = RunStarted(
        run_id=PIPELINE_RUN, team="default", pipeline="nightly", cause=CAUSE, revision=1, number=1
    )
    say(started, "nightly", began)
    gate = GateSet(config=MODEL_GATE, digest=MODEL_GATE.digest, user="ann")
    say(gate, MODEL_GATE.model, began)


def _trial(say: Say, number: int, at: datetime) -> None:
    lr = 10 ** (-4 + 3 * (number % 50) / 50)
    of: dict[str, Any] = {"study_id": STUDY_ID, "number": number}
    events: list[Event] = [
        TrialProposed(**of, parameters={"lr": lr, "opt": "sgd"}, by="random"),
        TrialStarted(**of, part=1, attempt=1, gpus=8, allocated_at=at),
        *(
            TrialMeasured(
                **of, part=1, step=step,
                values={"eval_loss": 2 / math.sqrt(step) + abs(math.log10(lr) + 2)},
            )
            for step in range(1, EVALUATIONS + 1)
        ),
    ]  # fmt: skip
    last = {"eval_loss": 2 / math.sqrt(EVALUATIONS) + abs(math.log10(lr) + 2)}
    events.append(TrialCompleted(**of, step=EVALUATIONS, values=last))
    for event in events:
        say(event, STUDY_ID, at)
