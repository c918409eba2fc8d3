"""The gateway says where images run, and by which digest a run uses its image."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from gangline_gateway.app_context import AppContext
from gangline_gateway.images import image_notes, image_of_run
from gangline_schemas.events.scheduling import NodeAdmitted
from gangline_schemas.image_reference import run_image_key
from gangline_storage.local import LocalStore
from support.builders.deciding import spec
from support.builders.live_job import JOINED, node_info
from support.builders.read_model import fold


def app_of(store: LocalStore | None = None, *, runs_images: bool = False) -> AppContext:
    joined = NodeAdmitted(node=node_info().model_copy(update={"runs_images": runs_images}))
    model = fold([JOINED, joined])
    known = SimpleNamespace(tail=SimpleNamespace(view=model.view), store=store)
    return cast("AppContext", known)


def test_a_dry_run_says_that_no_node_runs_images() -> None:
    (note,) = image_notes(app_of(), spec(image="a"))
    assert "none of 1 nodes runs images" in note
    assert image_notes(app_of(runs_images=True), spec(image="a")) == []
    assert image_notes(app_of(), spec()) == []


@pytest.mark.parametrize(
    ("image", "shown"),
    [(None, None), ("a", "docker.io/library/a:latest@sha256:1"), ("a@sha256:2", "a@sha256:2")],
)
def test_the_digest_of_a_run(tmp_path: Path, image: str | None, shown: str | None) -> None:
    store = LocalStore(tmp_path)
    store.put(run_image_key("nlp", "j"), b'{"image": "docker.io/library/a:latest@sha256:1"}')
    assert image_of_run(app_of(store), spec(image=image), "nlp", "j") == shown
    assert image_of_run(app_of(store), spec(image=image), "nlp", "other") == image
    assert image_of_run(app_of(None), spec(image=image), "nlp", "j") == image
    for job_id, damaged in {"d": b"", "e": b"[]", "f": b"{}"}.items():
        store.put(run_image_key("nlp", job_id), damaged)
        assert image_of_run(app_of(store), spec(image=image), "nlp", job_id) == image


def test_a_digest_is_read_once(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    app, key = app_of(store), run_image_key("nlp", "j")
    assert image_of_run(app, spec(image="a"), "nlp", "j") == "a"  # no node has read it yet
    store.put(key, b'{"image": "a:latest@sha256:1"}')
    assert image_of_run(app, spec(image="a"), "nlp", "j") == "a:latest@sha256:1"
    store.delete(key)
    assert image_of_run(app, spec(image="a"), "nlp", "j") == "a:latest@sha256:1"
