"""Parts of uploads that never end: they count, and those that are too old are given up."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("mlflow")

from gangline_mlflow.artifact_direct import ENDED_S, DirectArtifacts
from gangline_storage.errors import NotFound
from gangline_storage.s3_direct import Unfinished


class Uploads:
    """Three uploads of a team: a new one, one that has just ended, and an old one."""

    def __init__(self) -> None:
        self.aborted: list[tuple[str, str]] = []

    def unfinished(self, folder: str) -> list[Unfinished]:
        now = time.time()
        return [
            Unfinished(f"{folder}1/a", "new", now - ENDED_S / 2),
            Unfinished(f"{folder}1/b", "ended", now),
            Unfinished(f"{folder}1/c", "old", now - ENDED_S - 60),
        ]

    def size_bytes(self, _key: str, upload: str) -> int:
        if upload == "ended":
            raise NotFound("no such upload")
        return 7

    def abort(self, key: str, upload: str) -> None:
        self.aborted.append((key, upload))


class Artifacts(DirectArtifacts):  # type: ignore[misc]
    """Those of no server."""

    def __init__(self) -> None:
        self.uploads = Uploads()

    @property
    def _direct(self) -> Uploads:  # type: ignore[override]
        return self.uploads


def test_an_upload_that_is_too_old_to_get_parts_is_given_up_and_others_count() -> None:
    artifacts = Artifacts()
    assert artifacts._waiting("nlp").bytes == 7
    assert artifacts.uploads.aborted == [("workspaces/nlp/1/c", "old")]
