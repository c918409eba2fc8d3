"""What the gateway says of a job's checkpoints: health, cost, why kept, the advised interval."""

from __future__ import annotations

from datetime import timedelta

from gangline_bus.state_json import DataclassCodec
from gangline_gateway import present
from gangline_gateway.live import Live
from gangline_gateway.live_model import JobDetails, LiveFacts
from gangline_schemas.base import Event
from gangline_schemas.checkpoint_policy import BestCheckpoint, CheckpointPolicy, Retention
from gangline_schemas.events.checkpoints import (
    CheckpointCommitted,
    CheckpointCorrupted,
    CheckpointDeleted,
    CheckpointPinChanged,
    CheckpointPromoted,
    CheckpointSaved,
    CheckpointScrubbed,
    EffectDeferred,
    IntervalAdvised,
    PromotionRefused,
    PromotionRequested,
)
from gangline_schemas.events.scheduling import (
    CheckpointRef,
    JobQueued,
    NodeAdmitted,
)
from gangline_schemas.job import JobSpec
from gangline_schemas.resources import Resources
from support.builders import read_model
from support.builders.gangs import assigned, gang_allocated
from support.builders.read_model import NOW, ReadModel
from support.builders.scheduler import node

KEEP = Retention(latest=2, best=BestCheckpoint(metric="loss"), every=100)


def queued() -> JobQueued:
    spec = JobSpec(
        name="train", team="nlp", run="true", resources=Resources(gpus=2),
        checkpoint=CheckpointPolicy(keep=KEEP),
    )  # fmt: skip
    return JobQueued(job_id="a", spec=spec, user="ada", submitted_at=NOW)


def committed(step: int, loss: float, attempt: int = 1) -> CheckpointCommitted:
    ref = CheckpointRef(job_id="a", attempt=attempt, step=step, world_size=2, commit_key="k")
    return CheckpointCommitted(
        job_id="a", checkpoint=ref, size_bytes=9, objects=2, write_s=0.5, blocked_s=0.01,
        verify_s=0.2, metrics={"loss": loss},
    )  # fmt: skip


def fold(*events: Event) -> ReadModel:
    return read_model.fold((queued(), *events))


def details(model: ReadModel) -> JobDetails:
    found = model.view().details("a")
    assert found is not None
    return found


def advised(attempt: int, interval_s: float) -> IntervalAdvised:
    return IntervalAdvised(
        job_id="a", attempt=attempt, interval_s=interval_s, limited_by="optimum", cost_s=3.0,
        busy_s=40.0, mtbf_s=28_440.0, failures=1.0, lost_s=247.0, reason="because",
    )  # fmt: skip


def test_what_others_need_says_so_and_what_was_written_is_told_beside_the_whole() -> None:
    more = {"whole_bytes": 20, "refers": (50, 120)}
    model = fold(
        *(committed(step, 1.0) for step in (50, 120, 180)),
        *(committed(step, 1.0).model_copy(update=more) for step in (210, 220)),
    )
    answers = present.checkpoints(details(model))
    assert [(item.step, [*item.retained]) for item in answers] == [
        (220, ["latest", "best"]),
        (210, ["latest", "every"]),
        (180, ["in use"]),
        (120, ["every"]),
        (50, ["needed"]),
    ]
    told = [(item.size_bytes, item.whole_bytes, item.refers) for item in answers[1:3]]
    assert told == [(9, 20, (50, 120)), (9, None, ())]


def test_each_one_says_why_it_is_kept() -> None:
    model = fold(
        committed(50, 5.0),  # of no rule: a job starts from it
        committed(120, 4.0),  # the first of its hundred
        committed(180, 1.0),  # the best
        committed(210, 3.0),
        committed(220, 2.5),
        committed(230, 2.0),
        CheckpointDeleted(job_id="a", attempt=1, step=220, reason="newer checkpoints replace it"),
    )
    answers = present.checkpoints(details(model))
    assert [(item.step, [*item.retained]) for item in answers] == [
        (230, ["latest"]),
        (220, []),
        (210, ["latest", "every"]),
        (180, ["best"]),
        (120, ["every"]),
        (50, ["in use"]),
    ]
    assert (answers[0].verify_s, answers[0].metrics) == (0.2, {"loss": 2.0})
    assert (answers[1].status, answers[1].reason) == ("deleted", "newer checkpoints replace it")


def test_what_was_read_again_and_what_was_found_wrong() -> None:
    model = fold(
        committed(10, 5.0),
        committed(20, 4.0),
        CheckpointScrubbed(job_id="a", attempt=1, step=10, size_bytes=9),
        CheckpointCorrupted(job_id="a", attempt=1, step=20, key="x/y.bin", reason="is missing"),
        CheckpointScrubbed(job_id="a", attempt=7, step=10, size_bytes=9),
        CheckpointScrubbed(job_id="other", attempt=1, step=10, size_bytes=9),
        CheckpointDeleted(job_id="a", attempt=1, step=20, reason="it is corrupted"),
    )
    bad, good = present.checkpoints(details(model))
    assert (bad.status, bad.reason, bad.retained) == ("corrupted", "x/y.bin: is missing", ())
    assert (good.status, good.scrubbed_at, good.retained) == (
        "committed", NOW + timedelta(seconds=3), ("latest", "best"),
    )  # fmt: skip
    assert bad.scrubbed_at is None


def test_a_save_says_what_it_waits_for_until_it_counts() -> None:
    refused = "get k: S3 refused access"
    point = {"job_id": "a", "attempt": 1, "step": 10}
    events = [
        CheckpointSaved(**point, world_size=2),
        EffectDeferred(**point, effect="verify", tries=1, reason=refused),
        EffectDeferred(**point, effect="delete", tries=1, reason="of another wait"),
    ]
    [waits] = present.checkpoints(details(fold(*events)))
    assert (waits.status, waits.reason) == ("saved", refused)
    [counts] = present.checkpoints(details(fold(*events, committed(10, 5.0))))
    assert (counts.status, counts.reason) == ("committed", "")


def test_the_interval_is_the_specs_until_an_attempt_has_another() -> None:
    assert present.interval_s(details(fold()).job) == 600.0
    spec = queued().spec
    allocated = gang_allocated("a", spec, assigned("n0"), checkpoint_interval_s=414.0)
    joined = NodeAdmitted(node=node("n0"))
    assert present.interval_s(details(fold(joined, allocated)).job) == 414.0


def test_the_newest_advice_counts_and_survives_a_snapshot() -> None:
    model = fold(committed(10, 5.0), advised(1, 600.0), advised(2, 414.0))
    assert model.view().details("b") is None
    advice = details(model).advice
    assert advice is not None
    assert (advice.attempt, advice.interval_s, advice.reason) == (2, 414.0, "because")
    codec = DataclassCodec(LiveFacts)
    lines = b"".join(codec.dump(vars(model.live.facts()))).splitlines(keepends=True)
    again = ReadModel()
    again.live, again.scheduler = Live.of(codec.load(lines)), model.scheduler
    assert details(again) == details(model)


def test_what_is_pinned_and_what_was_validated_is_said_with_its_run() -> None:
    asked = PromotionRequested(job_id="a", attempt=1, step=210, run="v2", spec=queued().spec)
    model = fold(
        *(committed(step, 9.0 - step / 100) for step in (50, 60, 150, 210, 220, 230)),
        CheckpointPinChanged(job_id="a", attempt=1, step=50, pinned=True),
        CheckpointPinChanged(job_id="a", attempt=1, step=60, pinned=True),
        CheckpointPinChanged(job_id="a", attempt=1, step=60, pinned=False),
        CheckpointPromoted(job_id="a", attempt=1, step=150, run="v1"),
        asked,
        PromotionRefused(job_id="a", attempt=1, step=220, run="v3", reason="its loss is 9"),
        PromotionRefused(job_id="a", attempt=1, step=7, run="v4", reason="of what is not known"),
    )
    found = {item.step: item for item in present.checkpoints(details(model))}
    assert {step: [*item.retained] for step, item in found.items()} == {
        230: ["latest", "best"],
        220: ["latest"],
        210: ["every"],
        150: ["every", "promoted"],
        60: ["in use"],
        50: ["pinned"],
    }
    assert (found[50].pinned, found[60].pinned) == (True, False)
    promotions = {step: (item.promotion, item.promotion_run) for step, item in found.items()}
    assert promotions == {
        230: ("", ""), 220: ("refused", "v3"), 210: ("asked", "v2"), 150: ("promoted", "v1"),
        60: ("", ""), 50: ("", ""),
    }  # fmt: skip
    assert found[220].promotion_reason == "its loss is 9"
