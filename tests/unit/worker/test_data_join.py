"""Point-in-time joins: against a search row by row, ties, delays, ages, and refused tables."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from gangline_worker.data.__main__ import main
from gangline_worker.data.as_of import Rules, Source, join, read_source
from gangline_worker.data.errors import DataError

BEGIN = datetime(2026, 11, 21, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def table(name: str, rows: list[dict[str, Any]]) -> Source:
    return Source(Path(name), pa.Table.from_pylist(rows))


def searched(rows: Any, features: Any, delay_s: float, max_age_s: float | None) -> list[Any]:
    """The value for each row, by looking at every feature."""
    found = []
    for row in rows:
        best = None
        for feature in features:
            known = feature["at"] + timedelta(seconds=delay_s)
            same = (feature["user"], feature["shop"]) == (row["user"], row["shop"])
            if same and known <= row["at"] and (best is None or feature["at"] >= best["at"]):
                best = feature
        age_s = 0.0 if best is None else (row["at"] - best["at"]).total_seconds()
        fresh = best is not None and (max_age_s is None or age_s <= max_age_s)
        found.append(best["x"] if best is not None and fresh else None)
    return found


@pytest.mark.parametrize(("delay_s", "max_age_s"), [(0.0, None), (3.0, None), (2.0, 6.0)])
def test_each_row_has_what_a_search_of_all_features_finds(
    delay_s: float, max_age_s: float | None
) -> None:
    draw = random.Random(17)

    def one() -> dict[str, Any]:
        return {
            "user": draw.choice("abcd"), "shop": draw.randrange(3), "at": at(draw.randrange(20)),
        }  # fmt: skip

    for count in (0, 1, 40, 300):
        rows = [one() | {"label": number} for number in range(200)]
        features = [one() | {"x": number} for number in range(count)]
        known = table("f", features) if features else table("f", [one() | {"x": 0}])
        if not features:
            known = Source(known.path, known.table.slice(0, 0))
        rules = Rules(("user", "shop"), "at", delay_s, max_age_s)
        joined = join(table("rows", rows), [known], rules)
        expected = searched(rows, features, delay_s, max_age_s)
        assert joined.table.column("x").to_pylist() == expected
        assert joined.table.column("label").to_pylist() == list(range(200))
        assert joined.matched == (sum(value is not None for value in expected),)


def test_a_feature_of_the_same_moment_counts_and_a_later_one_never() -> None:
    rows = table("rows", [{"user": "a", "at": at(10)}])
    features = [{"user": "a", "at": at(10), "x": 1}, {"user": "a", "at": at(10.000001), "x": 2}]
    rules = Rules(("user",), "at")
    assert join(rows, [table("f", features)], rules).table.column("x").to_pylist() == [1]
    same = [{"user": "a", "at": at(10), "x": 1}, {"user": "a", "at": at(10), "x": 2}]
    assert join(rows, [table("f", same)], rules).table.column("x").to_pylist() == [2]


def test_the_command_joins_files_of_each_kind_and_says_how_many_rows_have_features(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, one, two = (tmp_path / name for name in ("rows.csv", "one.parquet", "two.jsonl"))
    rows.write_text(
        "user,at,label\na,2026-11-21T08:00:00Z,1\nb,2026-11-21T09:00:00Z,0\n"
        "a,2026-11-20T08:00:00Z,1\n"
    )
    days = [{"user": "a", "at": at(0).date(), "balance": 7.5}]
    parquet.write_table(pa.Table.from_pylist(days), one)
    two.write_text('{"user": "b", "at": "2026-11-21T09:00:00Z", "visits": 3}\n')
    out = tmp_path / "train.parquet"
    asked = [
        "join", str(rows), "--features", str(one), "--features", str(two), "--key", "user",
        "--time", "at", "--out", str(out),
    ]  # fmt: skip
    assert main(asked) == 0
    said = capsys.readouterr().out
    assert f"{one}: 1 of 3 rows have features (33.3%)" in said
    assert f"{out}: 3 rows, 5 columns" in said
    found = parquet.read_table(out)
    assert found.column_names == ["user", "at", "label", "balance", "visits"]
    assert found.column("balance").to_pylist() == [7.5, None, None]
    assert found.column("visits").to_pylist() == [None, 3, None]

    assert main(asked) == 2
    assert "is there already" in capsys.readouterr().err
    out.unlink()
    assert main([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["matched"] == {str(one): 1, str(two): 1}


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ([{"user": "a", "x": 1}], "f: has no column at; it has user, x"),
        ([{"user": None, "at": at(0)}, {"user": "a", "at": at(0)}], "user is missing in 1 rows"),
        ([{"user": 7, "at": at(0), "x": 1}], "f: column user is int64, and string in rows"),
        ([{"user": "a", "at": "noon", "x": 1}], "f: column at is string; give dates, or times"),
        ([{"user": "a", "at": at(0), "label": 1}], "f: column label is also in rows; rename"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(features: list[Any], message: str) -> None:
    rows = table("rows", [{"user": "a", "at": at(1), "label": 1}])
    with pytest.raises(DataError) as error:
        join(rows, [table("f", features)], Rules(("user",), "at"))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [("rows.txt", "a", "is none of .parquet"), ("rows.csv", "a,b\n1\n", "rows.csv: ")],
)
def test_a_file_that_is_no_table_is_named(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_source(path)


def test_wrong_options_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["join", "rows.csv", "--features", "f.csv", "--key", "user", "--time", "at"]
    for more, message in (
        (["--out", "x.csv"], "ends in .parquet"),
        (["--out", "x.parquet", "--delay-s", "-1"], "--delay-s -1.0: must be 0 to"),
        (["--out", "x.parquet", "--max-age-s", "nan"], "--max-age-s nan"),
        (["--out", str(tmp_path / "x.parquet")], "rows.csv"),
    ):
        assert main([*base, *more]) in {1, 2}
        assert message in capsys.readouterr().err
