"""Trace files: which columns count, and what is said of bad ones."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from gangline_simulator.errors import BadInputError
from gangline_simulator.trace import day, read_trace


def write(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "header",
    [
        "submit,duration,gpus",
        "submit_time,run_time,num_gpus",
        "Submitted_At,duration_s,gpu_num",
        "timestamp,runtime,num_gpu",
    ],
)
def test_columns_are_found_by_their_usual_names(tmp_path: Path, header: str) -> None:
    trace = read_trace(write(tmp_path, f"{header}\n7,10,2\n5,20.5,8\n"))
    found = [(job.submit_s, job.duration_s, job.gpus) for job in trace.jobs]
    assert found == [(0.0, 20.5, 8), (2.0, 10.0, 2)]
    assert trace.start is None


def test_a_column_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path, "when,submit,duration,size\n1,9,10,4\n3,9,10,4\n")
    trace = read_trace(path, {"submit": "when", "gpus": "size"})
    assert [job.submit_s for job in trace.jobs] == [0.0, 2.0]


def test_dates_team_and_priority_are_read(tmp_path: Path) -> None:
    text = "timestamp,duration,gpus,vc,priority\n2017-10-01 00:00:45,5,1,Vision_Lab,20\n"
    trace = read_trace(write(tmp_path, text))
    assert trace.start is not None
    assert trace.start.isoformat() == "2017-10-01T00:00:45+00:00"
    assert (trace.jobs[0].team, trace.jobs[0].priority) == ("vision-lab", 20)


def test_a_window_keeps_its_days_and_counts_from_its_first_job(tmp_path: Path) -> None:
    rows = "".join(f"2017-10-0{number} 12:00:00,5,1\n" for number in (1, 2, 3, 4))
    path = write(tmp_path, f"timestamp,duration,gpus\n{rows}")
    trace = read_trace(path, since=day("2017-10-02"), until=day("2017-10-03", end=True))
    assert [job.submit_s for job in trace.jobs] == [0.0, 86_400.0]


def test_jobs_of_one_moment_keep_the_order_of_the_file(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, "submit,duration,gpus,job\n5,1,1,a\n5,2,1,b\n5,1,1,c\n"))
    assert [job.name for job in trace.jobs] == ["a", "b", "c"]


def test_iterations_make_the_duration_in_milliseconds(tmp_path: Path) -> None:
    text = "job_id,num_gpu,submit_time,iterations,iteration_time,duration\n0,4,5000,100,250,1\n"
    trace = read_trace(write(tmp_path, text + "1,4,6500,100,250,1\n"))
    assert [(job.submit_s, job.duration_s) for job in trace.jobs] == [(0.0, 25.0), (1.5, 25.0)]


def test_rows_without_gpus_are_counted_and_left_out(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, "submit,duration,gpus\n0,1,0\n1,1,1\n"))
    assert (len(trace.jobs), trace.without_gpus) == (1, 1)


def test_workers_of_several_gpus_are_read(tmp_path: Path) -> None:
    rows = "submit,duration,gpus,gpus_per_worker\n0,1,8,4\n1,1,2,\n"
    trace = read_trace(write(tmp_path, rows))
    assert [job.gpus_per_worker for job in trace.jobs] == [4, 1]


def test_a_gzip_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(b"submit,duration,gpus\n0,1,1\n"))
    assert len(read_trace(path).jobs) == 1


BAD = [
    # text, row, field, what the message must say
    ("submit,gpus\n0,1\n", 1, "duration", "accepted names: duration, run_time"),
    ("submit,duration\n0,1\n", 1, "gpus", "--column gpus=COLUMN"),
    ("submit,duration,gpus\n0,1,1\n0,-5,1\n", 3, "duration", "-5 is out of range"),
    ("submit,duration,gpus\n0,1,-1\n", 2, "gpus", "-1 is out of range"),
    ("submit,duration,gpus\n0,x,1\n", 2, "duration", "'x' is no number"),
    ("submit,duration,gpus\n0,nan,1\n", 2, "duration", "nan is out of range"),
    ("submit,duration,gpus\n0,1,1.5\n", 2, "gpus", "1.5 is no whole number"),
    ("submit,duration,gpus\n0,1,99999\n", 2, "gpus", "up to 16384"),
    ("submit,duration,gpus\nsoon,1,1\n", 2, "submit", "seconds, or a date like"),
    ("submit,duration,gpus\n0,1,1\n2017-10-01,1,1\n", 3, "submit", "mixed"),
    ("submit,duration,gpus\n0\n", 2, "gpus", "the row has 1 cells"),
    ("submit,duration,gpus,priority\n0,1,1,101\n", 2, "priority", "0 (highest) to 100"),
    ("submit,duration,gpus,gpus_per_worker\n0,1,8,3\n", 2, "gpus_per_worker", "3 does not divide"),
    ("submit,duration,gpus,gpus_per_worker\n0,1,8,0\n", 2, "gpus_per_worker", "0 does not divide"),
    ("", 1, None, "is empty"),
    ("submit,duration,gpus\n", None, None, "holds no job"),
]


@pytest.mark.parametrize(("text", "row", "field", "said"), BAD, ids=[bad[3] for bad in BAD])
def test_a_bad_trace_is_refused_with_row_and_field(
    tmp_path: Path, text: str, row: int | None, field: str | None, said: str
) -> None:
    with pytest.raises(BadInputError) as refused:
        read_trace(write(tmp_path, text))
    assert (refused.value.row, refused.value.field) == (row, field)
    assert said in str(refused.value)
    assert str(tmp_path / "trace.csv") in str(refused.value)


def test_a_column_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "submit,duration,gpus\n0,1,1\n")
    with pytest.raises(BadInputError, match="there is no column when; there are submit, duration"):
        read_trace(path, {"submit": "when"})
    with pytest.raises(BadInputError, match="colour is no field of a trace"):
        read_trace(path, {"colour": "submit"})
    with pytest.raises(BadInputError, match="cannot be read"):
        read_trace(tmp_path / "none.csv")
