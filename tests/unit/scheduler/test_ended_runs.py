"""What is remembered of ended runs is short, and says the same checkpoints."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gangline_scheduler.core.ended_runs import EndedRun
from gangline_schemas.checkpoint import commit_key
from gangline_schemas.events.scheduling import CheckpointRef
from support.harnesses.decider_run import START

LINE = 100


def ref(step: int, attempt: int = 1, *, job_id: str = "job-1", prefix: str = "") -> CheckpointRef:
    folder = prefix or f"teams/nlp/checkpoints/{job_id}"
    return CheckpointRef(
        job_id=job_id,
        attempt=attempt,
        step=step,
        world_size=32,
        commit_key=commit_key(folder, attempt, step),
    )


def test_three_checkpoints_take_less_than_100_characters() -> None:
    points = (ref(100), ref(200), ref(300))
    run = EndedRun.of("nlp", START, points)
    assert len(run.line) < LINE
    assert run.checkpoints == points


def test_a_key_of_another_form_is_kept_as_it_is() -> None:
    odd = ref(1).model_copy(update={"commit_key": "teams/nlp/elsewhere"})
    points = (odd, ref(2), odd)
    assert EndedRun.of("nlp", START, points).checkpoints == points


refs = st.builds(
    ref,
    st.integers(0, 10**12),
    st.integers(1, 99_999),
    job_id=st.sampled_from(["job-1", "job-2"]),
    prefix=st.sampled_from(["", "teams/nlp/a/job-1", "teams/nlp/b/job-1"]),
)


@given(st.lists(refs, max_size=8))
def test_what_is_read_is_what_was_written(points: list[CheckpointRef]) -> None:
    assert EndedRun.of("nlp", START, points).checkpoints == tuple(points)
