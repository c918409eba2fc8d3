"""From a new snapshot to an alias that moved: the deciders of a pipeline, and all others played.

`Story` plays what is not under test: it answers each record of the logs of quota, pipelines and
registry once, as the scheduler, the agents, the checkpoint service and the user do. Deciders may be
killed and started again at any time: the end is the same.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

from gangline_bus.codec import decode, encode
from gangline_bus.ports import Bus, OutRecord, Record
from gangline_bus.topics import TopicNames
from gangline_schemas.artifacts import Artifact
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic, topic_of
from gangline_schemas.envelope import Envelope, LogPosition
from gangline_schemas.events.admin import TeamConfigureRequested
from gangline_schemas.events.checkpoints import CheckpointPromoted
from gangline_schemas.events.model_requests import (
    EvaluationRequested,
    GateRequested,
    ModelPromotionRequested,
    VersionRequested,
)
from gangline_schemas.events.pipeline_requests import PipelineConfigureRequested, SnapshotAnnounced
from gangline_schemas.events.pipelines import (
    PipelineConfigured,
    RunEnded,
    RunStarted,
    StepEnded,
    StepJobRequested,
)
from gangline_schemas.events.quota import JobAdmitted, TeamConfigured
from gangline_schemas.events.registry import AliasMoved, GateSet, PromotionJudged, VersionRegistered
from gangline_schemas.events.workers import StepOutputWritten
from gangline_schemas.gate_file import Gate
from gangline_schemas.job import JobState
from gangline_schemas.models import Evaluation
from gangline_schemas.pipeline_file import PipelineSpec
from gangline_schemas.team_limits import TeamConfig
from support.builders.pipelines import changed, released

TEAM, MODEL, ALIAS = "nlp", "tiny", "champion"
SNAPSHOT = f"web@xxh3-{1:032x}"
FOLLOWED = (Topic.QUOTA, Topic.PIPELINES, Topic.REGISTRY)
ONCE = (
    TeamConfigured, PipelineConfigured, GateSet, RunStarted, RunEnded, VersionRegistered,
    PromotionJudged, AliasMoved,
)  # fmt: skip
"""Events that are there once at the end, however often deciders were killed."""
_JOB = {"run": "true", "resources": {"gpus": 1}}
_SPEC = {
    "name": "loop", "team": TEAM,
    "steps": {
        "prepare": {"job": _JOB, "out": ["tokens"]},
        "train": {"job": _JOB, "in": {"data": "prepare.tokens"}, "out": ["model"]},
        "evaluate": {"job": _JOB, "in": {"model": "train.model"}, "out": ["scores"]},
        "register": {"job": _JOB, "in": {"scores": "evaluate.scores"}},
    },
    "triggers": {"new": {"snapshot": "web"}},
}  # fmt: skip
_GATE = {
    "team": TEAM, "model": MODEL, "aliases": [ALIAS], "baseline": "current", "first": "accept",
    "suites": {"qa": {"at_least": 0.5, "min_items": 1}},
}  # fmt: skip
_SCORES = {
    "digest": "1" * 64,
    "key": "registry/nlp/scores/1",
    "items": 9,
    "binary": True,
    "mean": 0.9,
}


class Story:
    """Reads the three logs and answers."""

    def __init__(self, bus: Bus, names: TopicNames) -> None:
        self._bus, self.names = bus, names
        self._writer = bus.writer()
        self._reader = bus.reader("story")
        places = [place for topic in FOLLOWED for place in names.places(bus, topic)]
        self._reader.assign(dict.fromkeys(places, 0))
        self._positions: Counter[Topic] = Counter()
        self.seen: list[Event] = []
        self.train = ""

    def begin(self) -> None:
        """The first requests; all that follows is an answer to a record."""
        team = TeamConfigureRequested(config=TeamConfig(team=TEAM, gpu_limit=8))
        self._say("team", TEAM, team)

    @property
    def over(self) -> bool:
        """Whether the alias moved and the run ended."""
        kinds = {type(event) for event in self.seen}
        return {AliasMoved, RunEnded} <= kinds

    def answer(self, timeout_s: float = 0.0, most: int = 100) -> list[Record]:
        """Answer the records that came, and give them."""
        records = self._reader.poll(most, timeout_s)
        for record in records:
            self._answer(record)
        self._writer.flush(30)
        return records

    def _answer(self, record: Record) -> None:
        event = decode(record).data
        self.seen.append(event)
        match event:
            case TeamConfigured():
                gate = GateRequested(config=Gate.model_validate(_GATE), user="ada")
                self._say("gate", MODEL, gate)
                spec = PipelineSpec.model_validate(_SPEC)
                self._say("file", "loop", PipelineConfigureRequested(spec=spec, user="ada"))
            case PipelineConfigured():
                self._say("snapshot", TEAM, SnapshotAnnounced(team=TEAM, snapshot=SNAPSHOT))
            case JobAdmitted():
                self._run(event)
            case StepEnded(step="register", result="succeeded"):
                asked = VersionRequested(team=TEAM, model=MODEL, job_id=self.train, user="ada")
                self._say("version", MODEL, asked)
            case VersionRegistered():
                self._promote(event.version)
            case _:
                pass

    def _run(self, job: JobAdmitted) -> None:
        """An agent runs the job, and its outputs are stored before it ends."""
        outputs = job.spec.artifacts.outputs if job.spec.artifacts is not None else {}
        for name in outputs:
            written = StepOutputWritten(
                job_id=job.job_id, attempt=1, node_id="n1", name=name,
                artifact=Artifact(digest=f"{sum(name.encode()):032x}", size_bytes=1, files=1),
            )  # fmt: skip
            self._say(f"{job.job_id}-{name}", job.job_id, written)
        if "model" in outputs:
            self.train = job.job_id
            promoted = CheckpointPromoted(job_id=job.job_id, attempt=1, step=100, run="validate-1")
            self._say("promoted", job.job_id, promoted)
        self._say(f"{job.job_id}-end", job.job_id, changed(job.job_id, JobState.SUCCEEDED))
        self._say(f"{job.job_id}-free", job.job_id, released(job.job_id))

    def _promote(self, version: int) -> None:
        names = {"team": TEAM, "model": MODEL, "user": "ada", "version": version}
        scored = Evaluation.model_validate(_SCORES)
        self._say("scores", MODEL, EvaluationRequested(**names, suite="qa", evaluation=scored))
        self._say("promotion", MODEL, ModelPromotionRequested(**names, alias=ALIAS))

    def _say(self, ce_id: str, subject: str, event: Event) -> None:
        topic = topic_of(event.type)
        position = None
        if topic in {Topic.SCHEDULING, Topic.CHECKPOINTS}:
            position = LogPosition(0, 1, self._positions[topic])
            self._positions[topic] += 1
        envelope = Envelope(ce_id, "/story", datetime.now(UTC), subject, event, position=position)
        self._writer.send(self._record(envelope, topic))

    def _record(self, envelope: Envelope, topic: Topic) -> OutRecord:
        return encode(envelope, topic=self.names.name(topic))


def problems(seen: list[Event]) -> list[str]:
    """Sentences about what is there twice or not at all; [] when the story went well."""
    found = []
    for kind in ONCE:
        count = sum(type(event) is kind for event in seen)
        if count != 1:
            found.append(f"{kind.type}: {count} times")
    for kind in (StepJobRequested, JobAdmitted):
        jobs = Counter(event.job_id for event in seen if isinstance(event, kind))
        if sorted(jobs.values()) != [1, 1, 1, 1]:
            found.append(f"{kind.type}: {dict(jobs)}")
    results = [event.result for event in seen if isinstance(event, StepEnded | RunEnded)]
    if results != ["succeeded"] * 5:
        found.append(f"ends: {results}")
    moved = [event for event in seen if isinstance(event, AliasMoved)]
    if [(one.kind, one.from_version, one.to_version) for one in moved] != [("gate", 0, 1)]:
        found.append(f"moves: {moved}")
    return found
