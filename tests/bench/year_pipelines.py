"""What pipelines have of the year: 500 of three steps, each once a day by its schedule.

These are 1,500 of the cluster's 5,000 jobs. Each team's outputs are swept once a day.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta

from year_automation import Automated
from year_work import START, TEAMS, Run

from gangline_pipelines.core.decide import PipelineDecider
from gangline_pipelines.core.model import Checked, CheckOutputs, Deleted
from gangline_pipelines.core.snapshot import codec
from gangline_schemas.artifacts import Artifact
from gangline_schemas.events.pipeline_requests import PipelineConfigureRequested, RunRequested
from gangline_schemas.events.workers import StepOutputWritten
from gangline_schemas.pipeline_file import PipelineSpec

PIPELINES, RUNS_LIVE = 500, 100
OUTPUTS = {"prepare": "tokens", "train": "model", "report": "page"}


def pipeline(number: int) -> PipelineSpec:
    """Prepare, train and report, once a day."""
    job = {"resources": {"gpus": 1}}
    command = ["python", "step.py", "--day", "${{ params.day }}"]
    return PipelineSpec.model_validate(
        {
            "name": f"p-{number}",
            "team": TEAMS[number % len(TEAMS)],
            "params": {"day": 0},
            "steps": {
                "prepare": {"job": {**job, "command": command}, "out": ["tokens"]},
                "train": {
                    "job": {**job, "command": ["python", "train.py"]},
                    "in": {"data": "prepare.tokens"},
                    "out": ["model"],
                },
                "report": {
                    "job": {**job, "command": ["python", "report.py"]},
                    "in": {"model": "train.model"},
                    "out": ["page"],
                },
            },
            "triggers": {"often": {"schedule": f"{number % 60} {number % 24} * * *"}},
            "retention": {"days": 7, "runs": 20},
        }
    )


class PipelineYear(Automated):
    """Runs that are remembered begin by their schedules, earlier ones are asked for.

    The invariants of the past are checked once, at its end: 500 runs a day are thousands of inputs.
    """

    def begin(self) -> None:
        self.checks = False
        for number in range(PIPELINES):
            self.give("configured", PipelineConfigureRequested(spec=pipeline(number), user="ada"))

    def end_run(self, run: Run) -> None:
        if not self.whole:
            self._begin(run.number)
        elif run.number % (self.runs_a_day // 24) == 0:
            self.tick()
        while self.state.jobs:
            self._finish()

    def begin_work(self) -> None:
        self.checks = True
        for number in range(RUNS_LIVE):
            self._begin(number)

    def round(self) -> None:
        self.now += self.between_runs
        self.tick()
        for _ in range(3):
            if len(self.state.jobs) >= RUNS_LIVE:
                self._finish()
        step = (self.now - START) // timedelta(seconds=1)
        if len(self.state.jobs) < RUNS_LIVE:
            self._begin(step)

    def _begin(self, number: int) -> None:
        team, name = TEAMS[number % PIPELINES % len(TEAMS)], f"p-{number % PIPELINES}"
        params = {"day": (self.now - START) // timedelta(seconds=1)}
        asked = RunRequested(team=team, pipeline=name, params=params, user="ada")
        self.give("asked", asked)

    def _finish(self) -> None:
        """The job that began first ends."""
        job, (_, step) = next(iter(self.state.jobs.items()))
        digest = hashlib.md5(job.encode()).hexdigest()
        artifact = Artifact(digest=digest, size_bytes=10**6, files=1, value=None)
        written = StepOutputWritten(
            job_id=job, attempt=1, node_id="n", name=OUTPUTS[step], artifact=artifact
        )
        self.give("written", written)
        self.released(job)
        if job in self.state.jobs:  # a sweep lasts, whose work begins with a Tick
            self.tick()

    def answer(self, effect: object) -> object:
        return Checked(()) if isinstance(effect, CheckOutputs) else Deleted()


def pipeline_year() -> PipelineYear:
    """The service before its year."""
    return PipelineYear(PipelineDecider(), codec(), runs_a_day=PIPELINES)
