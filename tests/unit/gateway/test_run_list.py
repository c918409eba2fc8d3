"""Pages of runs from two sources: nothing is left out, and nothing comes twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline_gateway.history import RunFilter
from gangline_gateway.run_filter import RunQuery
from gangline_gateway.run_list import page_of, search_of
from gangline_schemas.api.runs import Run
from gangline_schemas.run_search import FoundRun, RunKey, RunTest

AT = datetime(2026, 1, 1, tzinfo=UTC)
WANTED = RunFilter(order_by=("metrics.loss", "name DESC"))


def a_run(number: int, loss: float | None, name: str | None) -> FoundRun:
    run = Run(
        run_id=f"run-{number:03}", team="nlp", project="", name=name or "", user="", state="",
        reason="", attempt=0, restarts=0, gpus=0, priority=0, started_at=None, ended_at=None,
        submitted_at=AT + timedelta(seconds=number % 3), gpu_seconds=0, strategy="", code_ref="",
        data_snapshot="", hyperparameters={},
    )  # fmt: skip
    at_ms = run.submitted_at.timestamp() * 1000
    return FoundRun(run=run, order=(loss, name, at_ms, run.run_id))


def key(found: FoundRun) -> tuple[object, ...]:
    """Ascending loss, descending name, then the newest first; what is missing comes last."""
    loss, name, at_ms, run_id = found.order
    letters = [-ord(letter) for letter in str(name)]
    number = int(str(run_id).removeprefix("run-"))
    return loss is None, loss or 0.0, name is None, letters, -float(at_ms or 0), -number


@given(
    values=st.lists(
        st.tuples(
            st.none() | st.sampled_from([0.5, 1.0, -2.0]), st.sampled_from([None, "a", "b"]),
            st.booleans(),
        ),
        max_size=12,
    ),
    limit=st.integers(1, 5),
)  # fmt: skip
def test_pages_together_are_all_runs_in_order(
    values: list[tuple[float | None, str | None, bool]], limit: int
) -> None:
    runs = [(a_run(n, loss, name), is_job) for n, (loss, name, is_job) in enumerate(values)]
    expected = sorted((run for run, _ in runs), key=key)

    def source(*, of_jobs: bool, cursor: str | None) -> list[FoundRun]:
        own = [run for run in expected if (run, of_jobs) in runs]
        after = search_of(WANTED, limit=limit, cursor=cursor).after
        if after is not None:
            last = next(run for run in expected if run.order == after)
            own = [run for run in own if expected.index(run) > expected.index(last)]
        return own[: limit + 1]

    seen, cursor = [], None
    while True:
        both = [run for of_jobs in (True, False) for run in source(of_jobs=of_jobs, cursor=cursor)]
        page = page_of(both, WANTED, limit)
        seen += page.runs
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == [run.run for run in expected]


def test_the_other_source_is_asked_for_the_same() -> None:
    where = (
        "params.lr > 0.1 and start_time >= '2026-01-01' and tags.`mlflow.user` IN ('a', 'b') "
        "and metrics.loss IS NULL"
    )
    wanted = RunFilter(frozenset({"nlp"}), where=where, submitted_before=AT)
    asked = search_of(wanted, limit=2, cursor=None)
    at_ms = AT.timestamp() * 1000
    assert asked.tests == (
        RunTest(key=RunKey(kind="param", name="lr"), operator=">", value=0.1, is_number=True),
        RunTest(
            key=RunKey(kind="attribute", name="started_at"), operator=">=", value=at_ms,
            is_number=False,
        ),
        RunTest(
            key=RunKey(kind="tag", name="mlflow.user"), operator="IN", value=("a", "b"),
            is_number=False,
        ),
        RunTest(
            key=RunKey(kind="metric", name="loss"), operator="=", value=None, is_number=False
        ),
    )  # fmt: skip
    assert (asked.teams, asked.submitted_before_ms, asked.limit) == (("nlp",), at_ms, 3)
    assert [key.down for key in asked.order] == [True, True]


@pytest.mark.parametrize(("name", "is_number"), [("'0.1'", False), ("0.1", True)])
def test_a_parameter_is_compared_as_it_is_written(name: str, *, is_number: bool) -> None:
    (test,) = RunQuery(f"params.lr = {name}").tests
    assert test.is_number == is_number
