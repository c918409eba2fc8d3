"""Pinned artifacts: the list, the cache, and what is not trusted."""

import hashlib
from pathlib import Path

import pytest

from gangline.local import artifacts
from gangline.local.artifacts import Artifact, ArtifactError, fetch_all, parse_pins
from gangline.local.kafka_storage import KAFKA_VERSION

CONTENT = b"a jar"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object) -> Path:
        raise OSError("no network")

    monkeypatch.setattr(artifacts, "_download", refuse)
    monkeypatch.setattr(artifacts, "FIRST_RETRY_S", 0.0)


def put(cache: Path, artifact: Artifact, content: bytes) -> Path:
    path = cache / "jars" / artifact.filename
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


def test_the_pinned_kafka_is_complete() -> None:
    pins = artifacts.kafka_artifacts()
    assert len(pins) == 43
    assert len({pin.filename for pin in pins}) == 43
    assert sum(pin.size_bytes for pin in pins) > 40e6
    versions = {pin.coordinate.split(":")[2] for pin in pins if ":kafka" in pin.coordinate}
    assert versions == {KAFKA_VERSION}


def test_a_classifier_is_part_of_the_file_name() -> None:
    assert Artifact("org.x:tool:1.2:all", SHA256).filename == "tool-1.2-all.jar"


@pytest.mark.parametrize("line", ["org.x:tool:1", "org.x:tool:1 abc 3", f"o:t:1 {SHA256} many"])
def test_a_wrong_pin_names_its_line(line: str) -> None:
    with pytest.raises(ArtifactError, match="line 2"):
        parse_pins(f"# pins\n{line}\n")


@pytest.mark.usefixtures("offline")
def test_what_is_cached_and_right_needs_no_network(tmp_path: Path) -> None:
    artifact = Artifact("org.x:tool:1", SHA256)
    path = put(tmp_path, artifact, CONTENT)
    assert fetch_all([artifact], tmp_path) == [path]


@pytest.mark.usefixtures("offline")
def test_a_flipped_bit_in_the_cache_is_not_used(tmp_path: Path) -> None:
    artifact = Artifact("org.x:tool:1", SHA256)
    put(tmp_path, artifact, b"a jaR")
    with pytest.raises(ArtifactError, match=r"org\.x:tool:1: no network"):
        fetch_all([artifact], tmp_path)


def test_a_download_replaces_a_wrong_file_and_reports_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = Artifact("org.x:tool:1", SHA256, len(CONTENT))
    put(tmp_path, artifact, b"torn")

    def download(_artifact: Artifact, target: Path) -> None:
        target.write_bytes(CONTENT)

    monkeypatch.setattr(artifacts, "_download", download)
    lines: list[str] = []
    paths = fetch_all([artifact], tmp_path, lines.append)
    assert [path.read_bytes() for path in paths] == [CONTENT]
    assert lines[0].startswith("fetching 1")
    assert lines[-1].startswith("1/1")


def test_a_wrong_coordinate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="group:name:version"):
        fetch_all([Artifact("tool-1.jar", SHA256)], tmp_path)
