"""`gangline data profile` and `announce`: which profile is sent, and of what time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gangline_worker.data.__main__ import main
from support.fakes.stub_gateway import Stub
from support.harnesses.cli_run import Runner

ROW = {
    "team": "nlp", "snapshot": "corpus@xxh3-" + "0" * 32, "digest": "0" * 64, "rows": 1,
    "columns": 2, "made_at": "2026-11-20T00:00:00Z", "serving": False,
}  # fmt: skip


def prepared(folder: Path, *options: str) -> str:
    """A snapshot's folder."""
    (folder / "a.txt").write_text("some words\n" * 50)
    out = folder / "corpus"
    assert main(["prepare", str(folder / "a.txt"), "--out", str(out), *options]) == 0
    return str(out)


def sent(stub: Stub) -> list[dict[str, Any]]:
    return stub.bodies("POST", "/v1/profiles")


def name_of(output: str) -> str:
    return output.split()[1]


def test_a_profile_is_sent_with_the_time_at_which_the_snapshot_was_made(
    stub: Stub, gangline: Runner, tmp_path: Path
) -> None:
    stub.on("POST", "/v1/profiles", ROW)
    place = prepared(tmp_path)
    kept = Path(place, "profile.json")
    kept.write_text(kept.read_text().replace('"share":1.0', '"share":0.25'))
    done = gangline("data", "profile", place, "--team", "nlp")
    assert done.code == 0, done.err
    assert "a sample of 25.0%" in done.out
    (body,) = sent(stub)
    assert body["made_at"][:16] in kept.read_text()
    assert [one["name"] for one in body["profile"]["columns"]] == ["document_tokens", "token"]


def test_a_snapshot_without_a_time_needs_one(stub: Stub, gangline: Runner, tmp_path: Path) -> None:
    stub.on("POST", "/v1/profiles", ROW)
    place = prepared(tmp_path, "--no-profile")
    done = gangline("data", "profile", place, "--team", "nlp")
    assert (done.code, sent(stub)) == (2, [])
    assert "--made-at" in done.err
    made = ("--made-at", "2026-01-02", "--serving")
    done = gangline("data", "profile", place, "--team", "nlp", *made)
    assert done.code == 0, done.err
    assert sent(stub)[0]["made_at"].startswith("2026-01-02")
    assert sent(stub)[0]["serving"]


def test_a_place_without_a_snapshot_is_named(gangline: Runner, tmp_path: Path) -> None:
    done = gangline("data", "profile", str(tmp_path), "--team", "nlp")
    assert done.code == 2
    assert str(tmp_path) in done.err


@pytest.mark.parametrize(
    ("name", "content", "column"),
    [
        ("a.csv", "price\n1\nnan\n3\n", ("number", 1)),
        ("a.csv", 'price\n1\n""\n-inf\n', ("number", 2)),
        ("a.csv", "price\nnan\ninf\n", ("category", 0)),
        ("a.csv", "price\nnan\ncheap\n", ("category", 0)),
        ("a.jsonl", f'{{"price": 1}}\n{{"price": {10**400}}}\n', ("number", 1)),
        ("a.jsonl", '{"price": "\\ud800"}\n', ("category", 0)),
    ],
)
def test_odd_numbers_of_a_table_count_as_missing(
    stub: Stub, gangline: Runner, tmp_path: Path, name: str, content: str, column: tuple[str, int]
) -> None:
    """So they neither make texts of a column of numbers nor end the command without a message."""
    stub.on("POST", "/v1/profiles", ROW)
    table = tmp_path / name
    table.write_text(content)
    done = gangline("data", "profile", str(table), "--team", "nlp")
    assert done.code == 0, done.err
    (one,) = sent(stub)[0]["profile"]["columns"]
    assert (one["kind"], one["missing"]) == column


def test_a_table_that_has_no_profile_is_named_with_the_field(
    gangline: Runner, tmp_path: Path
) -> None:
    table = tmp_path / "wide.csv"
    table.write_text("\n".join(",".join(f"c{at}" for at in range(2001)) for _ in range(2)))
    done = gangline("data", "profile", str(table), "--team", "nlp")
    assert done.code == 2
    assert "wide.csv: has no profile: columns:" in done.err


@pytest.mark.parametrize(
    ("options", "profiles"), [((), 1), (("--no-profile",), 0)], ids=["with", "without"]
)
def test_an_announcement_sends_the_profile_that_lies_there(
    stub: Stub,
    gangline: Runner,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    profiles: int,
) -> None:
    stub.on("POST", "/v1/profiles", ROW)
    stub.on("POST", "/v1/data/snapshots", {"snapshot": ROW["snapshot"], "runs": []})
    place = prepared(tmp_path)
    name = name_of(capsys.readouterr().out)
    arguments = ("data", "announce", name, "--team", "nlp", "--place", place)
    done = gangline(*arguments, *options)
    assert done.code == 0, done.err
    assert len(sent(stub)) == profiles
    (body,) = stub.bodies("POST", "/v1/data/snapshots")
    assert (body["place"], len(body["sources"])) == (place, profiles)
    assert body["sources"] in ([], [str(tmp_path / "a.txt")])


def test_a_place_that_cannot_be_read_here_is_announced_with_a_note(
    stub: Stub, gangline: Runner, tmp_path: Path
) -> None:
    stub.on("POST", "/v1/data/snapshots", {"snapshot": ROW["snapshot"], "runs": []})
    place = str(tmp_path / "elsewhere")
    done = gangline("data", "announce", str(ROW["snapshot"]), "--team", "nlp", "--place", place)
    assert done.code == 0, done.err
    assert "there is no profile; none is sent" in done.err
    assert sent(stub) == []
