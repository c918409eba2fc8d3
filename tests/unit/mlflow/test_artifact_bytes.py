"""Bytes of artifacts by team: limits, deletes, and counts after a kill. On SQLite and a folder."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

sa = pytest.importorskip("sqlalchemy")


from gangline_mlflow import artifacts  # noqa: E402
from gangline_mlflow.artifact_bytes import ArtifactBytes, OverLimit  # noqa: E402 - needs sqlalchemy
from gangline_mlflow.artifacts import Artifacts, Busy, owned  # noqa: E402
from gangline_storage import InvalidKey, LocalStore, ObjectInfo  # noqa: E402

NLP = "workspaces/nlp"


class Counted:
    """Artifacts and their counts, as one process has them."""

    def __init__(self, folder: Path, limit: int | None = 1000, **limits: int) -> None:
        self.artifacts = Artifacts(LocalStore(folder / "store"))
        self.listings = 0
        engine = sa.create_engine(f"sqlite:///{folder / 'test.db'}")
        self.counts = ArtifactBytes(engine, limit, limits, self._listed)
        self.artifacts.count_in(self.counts)

    def put(self, path: str, size: int, *, known: bool = True) -> None:
        body = io.BytesIO(bytes(size))
        self.artifacts.put(f"workspaces/{path}", body, size if known else None)

    def delete(self, path: str) -> None:
        self.artifacts.delete(f"workspaces/{path}")

    def check(self, team: str = "nlp") -> int:
        stored = self.counts.stored(team)
        assert stored == self.artifacts.bytes_of(team)
        return stored

    def _listed(self, team: str) -> int:
        self.listings += 1
        return self.artifacts.bytes_of(team)


@pytest.fixture
def counted(tmp_path: Path) -> Iterator[Counted]:
    return Counted(tmp_path)


@pytest.mark.parametrize("known", [True, False])
def test_a_file_above_the_limit_is_refused_whole(counted: Counted, *, known: bool) -> None:
    counted.put("nlp/a", 600, known=known)
    with pytest.raises(OverLimit, match=r"team nlp uses 60[01] bytes of its 1000 bytes"):
        counted.put("nlp/b", 401, known=known)
    assert counted.check() == 600
    counted.put("nlp/b", 400, known=known)
    assert counted.check() == 1000
    with pytest.raises(OverLimit):
        counted.put("nlp/c", 1, known=known)
    counted.put("vision/c", 1000, known=known)
    counted.delete("nlp/b")
    assert counted.check() == 600
    counted.put("nlp/c", 400, known=known)


def test_parts_of_open_uploads_are_counted_at_intervals_however_many_begin(tmp_path: Path) -> None:
    """To count them costs a request for each open upload."""
    counted = Counted(tmp_path, limit=100)
    now, asked = [0.0], list[str]()
    counted.artifacts = Artifacts(counted.artifacts.store, lambda: now[0])
    counted.artifacts.count_in(counted.counts)

    def begin(team: str, stored: int, uploads: int = 100) -> None:
        def count() -> artifacts.Waiting:
            asked.append(team)
            return artifacts.Waiting(stored, uploads)

        counted.artifacts.check_room(f"workspaces/{team}/file", count)

    for _ in range(51):
        begin("nlp", 100)
    begin("vision", 0)
    assert asked == ["nlp", "vision"]
    begin("nlp", 100)  # half as many have begun as there were
    assert asked == ["nlp", "vision", "nlp"]
    now[0] = artifacts.WAITING_KNOWN_S
    with pytest.raises(OverLimit):
        begin("nlp", 101)
    assert asked == ["nlp", "vision", "nlp", "nlp"]
    begin("nlp", 0)  # none is refused by what was


def test_only_the_first_change_costs_a_listing(counted: Counted) -> None:
    for number in range(5):
        counted.put(f"nlp/{number}", 10)
    counted.delete("nlp/1")
    assert counted.listings == 1


def test_counts_follow_any_mix_of_changes(tmp_path: Path) -> None:
    counted, random = Counted(tmp_path, 2000), Random(7)
    names = [f"nlp/{folder}/{name}" for folder in "ab" for name in "xyz"]
    for _ in range(200):
        if random.random() < 0.7:
            with contextlib.suppress(OverLimit):
                counted.put(
                    random.choice(names), random.randrange(700), known=random.random() < 0.5
                )
        else:
            counted.delete(random.choice([*names, "nlp/a", "nlp/none"]))
        assert counted.check() <= 2000
    assert counted.listings == 1


def test_a_writer_that_fails_is_not_counted(counted: Counted) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise ConnectionResetError

    with pytest.raises(Exception, match=r"ConnectionReset|put"):
        counted.artifacts.put(f"{NLP}/a", Broken(), 900)
    assert counted.check() == 0
    counted.put("nlp/a", 900)


def test_uploads_at_once_stay_below_the_limit(counted: Counted) -> None:
    refused = []

    def upload(number: int) -> None:
        try:
            counted.put(f"nlp/{number % 7}", 150)
        except OverLimit:
            refused.append(number)

    threads = [threading.Thread(target=upload, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted.check() <= 1000
    assert refused


class During(io.BytesIO):
    """A body; something else happens before its first bytes."""

    def __init__(self, size: int, then: Callable[[], None]) -> None:
        super().__init__(bytes(size))
        self._then = then

    def read(self, size: int | None = -1) -> bytes:
        if not self.tell():
            self._then()
        return super().read(size)


def test_a_file_that_is_being_replaced_is_not_removed_with_its_folder(
    counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "_WAIT_S", 0.01)
    counted.put("nlp/f/x", 300)

    def remove() -> None:
        with pytest.raises(Busy, match="nlp/f/x is being written"):
            counted.delete("nlp/f")

    counted.artifacts.put(f"{NLP}/f/x", During(400, remove), 400)
    assert counted.check() == 400
    counted.delete("nlp/f")
    assert counted.check() == 0


def test_a_file_that_was_replaced_since_the_listing_is_removed_as_it_is(tmp_path: Path) -> None:
    class Later(LocalStore):
        def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
            found = [*super().list(prefix)]
            if prefix == f"{NLP}/f/":
                counted.put("nlp/f/x", 1)
            return iter(found)

    counted = Counted(tmp_path)
    counted.put("nlp/f/x", 900)
    counted.artifacts.store = Later(tmp_path / "store")
    counted.delete("nlp/f")
    assert counted.check() == 0


def test_parts_count_as_the_file_that_they_became(counted: Counted) -> None:
    def write() -> None:
        counted.artifacts.store.put(f"{NLP}/a", bytes(700))

    counted.artifacts.replace(f"{NLP}/a", 100, write)
    assert counted.check() == 700


@pytest.mark.parametrize("kill_at", ["put", "delete"])
def test_a_kill_in_a_change_leads_to_a_new_count(tmp_path: Path, kill_at: str) -> None:
    counted = Counted(tmp_path)
    counted.put("nlp/a", 300)
    counted.put("vision/a", 300)
    with counted.counts.change("nlp", size_bytes=200 if kill_at == "put" else 0):
        if kill_at == "put":
            (tmp_path / "store" / NLP / "b").write_bytes(bytes(200))
        else:
            (tmp_path / "store" / NLP / "a").unlink()
        again = Counted(tmp_path)  # the next process, while this one never comes back
    assert again.check() == (500 if kill_at == "put" else 0)
    assert again.check("vision") == 300
    assert again.listings == 1


def test_files_that_were_there_before_count(tmp_path: Path) -> None:
    folder = tmp_path / "store" / NLP
    folder.mkdir(parents=True)
    (folder / "old").write_bytes(bytes(900))
    counted = Counted(tmp_path)
    with pytest.raises(OverLimit):
        counted.put("nlp/a", 200)
    assert counted.check() == 900


def test_teams_have_limits_of_their_own(tmp_path: Path) -> None:
    counted = Counted(tmp_path, None, nlp=100)
    counted.put("vision/a", 10_000)
    with pytest.raises(OverLimit, match="100 bytes"):
        counted.put("nlp/a", 101)


@pytest.mark.parametrize(
    "path",
    ["workspaces/vision/x", "workspaces/nlp", "workspaces/nlp/", "workspaces/nlp/../vision/x",
     "workspaces/nlpx/x", "", "/workspaces/nlp/x", "workspaces/nlp/a\\b", "workspaces/nlp/./x"],
)  # fmt: skip
def test_a_path_of_nobody_s_or_another_s_is_refused(path: str) -> None:
    with pytest.raises(InvalidKey):
        owned("nlp", path)


def test_no_team_owns_nothing() -> None:
    with pytest.raises(InvalidKey):
        owned("", "workspaces//x")
