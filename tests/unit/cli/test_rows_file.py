"""Files of scores and of tables: three forms, and errors that name the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline.commands.profiles import _table
from gangline.commands.rows_file import read_scores
from gangline.errors import CliError
from gangline.exchange.records import LONGEST_LINE

SCORES = {
    "a.json": '{"q1": 1, "q2": 0.5}',
    "a.jsonl": '{"id": "q1", "score": 1}\n\n{"id": "q2", "score": 0.5}\n',
    "a.csv": "id,score\nq1,1\nq2,0.5\n",
    "marked.csv": "\ufeffid,score\nq1,1\nq2,0.5\n",
    "marked.json": '\ufeff{"q1": 1, "q2": 0.5}',
    "other.jsonl": '{"id": "q1", "score": 1, "x": "\u2028\x85"}\n{"id": "q2", "score": 0.5}\n',
}


@pytest.mark.parametrize("name", SCORES)
def test_scores_are_read_in_three_forms(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(SCORES[name], encoding="utf-8")
    assert read_scores(path) == {"q1": 1.0, "q2": 0.5}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.jsonl", '{"id": "q1", "score": 1}\n{"id": "q1", "score": 0}\n', "2: id q1 comes twice"),
        ("a.jsonl", "\n{oops}\n", "2: is not JSON"),
        ("a.csv", "id,score\nq1,high\n", "2: score: is not a number"),
        ("a.csv", f"id,score\n{'x' * (LONGEST_LINE + 1)},1\n", "is not CSV: field larger"),
        ("a.jsonl", "\n" + "[" * 100_000, "2: is not JSON"),
        ("a.json", '{"a": 1' + "0" * 400 + "}", "score: is not a number"),
        ("a.json", '{"a": NaN}', "score: must be finite"),
        ("a.csv", "id,score\nq1,1\nq2,-inf\n", "3: score: must be finite"),
        ("a.jsonl", '{"id": "\\ud800", "score": 1}', "1: id: is not text in Unicode"),
        ("a.json", "[1]", "must be an object"),
        ("a.csv", "", "holds no scores"),
    ],
)
def test_a_wrong_score_names_its_line(tmp_path: Path, name: str, text: str, words: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(CliError, match=words):
        read_scores(path)


def test_a_table_has_numbers_texts_and_missing_values(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    long = "a" * 200_000
    path.write_text(f"n,word\n1,{long}\n,b\n2.5,\n")
    assert _table(path) == ({"n": [1.0, None, 2.5], "word": [long, "b", None]}, 3)
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1}\n{"n": "x"\n')
    with pytest.raises(CliError, match="2: is not JSON"):
        _table(path)
