"""Container images of jobs: which nodes run them, and the digest that a run uses."""

from __future__ import annotations

import json
from functools import lru_cache

from gangline_gateway.app_context import AppContext
from gangline_schemas.image_reference import run_image_key
from gangline_schemas.job import JobSpec
from gangline_storage.errors import StoreError
from gangline_storage.port import ObjectStore


def image_notes(app: AppContext, spec: JobSpec) -> list[str]:
    """Why a job with an image would wait: no node runs images. [] when one does."""
    if spec.image is None:
        return []
    live = app.tail.view()
    nodes = [one for one in map(live.node, live.nodes) if one is not None]
    if any(one.info.runs_images for one in nodes):
        return []
    note = (
        f"the job would wait: image: none of {len(nodes)} nodes runs images; agents do that run "
        "as root and isolate by namespaces"
    )
    return [note]


def image_of_run(app: AppContext, spec: JobSpec | None, team: str, job_id: str) -> str | None:
    """The image by the digest that all attempts use; the name in the spec while none is known."""
    if spec is None or spec.image is None or "@" in spec.image or app.store is None:
        return None if spec is None else spec.image
    try:
        return _stored(app.store, run_image_key(team, job_id))  # type: ignore[arg-type] # by identity
    except StoreError:  # no node has read the tag yet, or the store is away
        return spec.image
    except (ValueError, KeyError, TypeError):  # damaged: its nodes say so
        return spec.image


@lru_cache(maxsize=1000)
def _stored(store: ObjectStore, key: str) -> str:
    """The image in this object, which no one replaces: a followed job reads it once."""
    return str(json.loads(store.get(key))["image"])
