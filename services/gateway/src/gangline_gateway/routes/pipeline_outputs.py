"""The files of a step's outputs: their list, and the bytes of one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Annotated

from fastapi import Path, Query
from starlette.responses import StreamingResponse

from gangline_gateway.app_context import App, AppContext, Caller, answers, router
from gangline_gateway.objects import store_of
from gangline_gateway.pipelines_state import pipelines_of
from gangline_gateway.problems import ProblemError, conflict, not_found, unavailable
from gangline_gateway.routes.pipelines import ID, RunName
from gangline_pipelines.core.state import step_key
from gangline_schemas.api.pipelines import OutputFiles
from gangline_schemas.artifacts import (
    MAX_MANIFEST_BYTES,
    ArtifactFile,
    ArtifactManifest,
    manifest_key,
    object_key,
)
from gangline_service.tokens import Principal
from gangline_storage import read_verified
from gangline_storage.errors import DamagedObject, NotFound, StoreError
from gangline_storage.port import ObjectStore

pipeline_outputs = router("Pipelines")
_OUTPUT = r"^[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?$"
_CHUNK_BYTES = 1 << 20
_REPAIR = "is damaged in the store; a new run of the step replaces it"
_OF = "/v1/pipeline-runs/{run_id}/steps/{step}/outputs/{name}"
Step = Annotated[str, Path(pattern=ID, description="The step, or the item of its fan-out.")]
Output = Annotated[str, Path(alias="name", pattern=_OUTPUT, description="The output's name.")]


@pipeline_outputs.get(
    _OF,
    operation_id="listOutputFiles",
    summary="List the files of a step's output",
    response_model=OutputFiles,
    responses=answers(404, 409),
)
def list_output_files(
    run_name: RunName, step: Step, output: Output, app: App, caller: Caller
) -> OutputFiles:
    """With the size and the xxh3-128 of each; a score is the file `value`."""
    team, digest = _made(app, caller, run_name, step, output)
    return OutputFiles(digest=digest, files=[*_manifest(store_of(app), team, digest).files])


@pipeline_outputs.get(
    f"{_OF}/content",
    operation_id="downloadOutputFile",
    summary="Download a file of a step's output",
    response_class=StreamingResponse,
    responses={
        200: {
            "content": {
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
            }
        },
        **answers(404, 409),
    },
)
async def download_output_file(
    run_name: RunName,
    step: Step,
    output: Output,
    app: App,
    caller: Caller,
    *,
    path: Annotated[str, Query(min_length=1, max_length=1024, description="As the list has it.")],
) -> StreamingResponse:
    """Its bytes as they are stored: compare them with the digest of the list."""

    def found() -> tuple[ArtifactFile, Iterator[bytes]]:
        team, digest = _made(app, caller, run_name, step, output)
        store = store_of(app)
        file = _by_path(store, team, digest).get(path)  # type: ignore[arg-type] # by identity
        if file is None:
            raise not_found("file")
        return file, _parts(store, team, file)

    file, parts = await asyncio.to_thread(found)
    headers = {
        "Content-Length": str(file.size_bytes),
        "Content-Disposition": "attachment",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }
    return StreamingResponse(parts, media_type="application/octet-stream", headers=headers)


def gone(what: str) -> ProblemError:
    """A 404 problem: it was made, and is not in the store any more."""
    return ProblemError(404, "gone", f"{what} was deleted from the store; a new run makes it again")


def _made(
    app: AppContext, caller: Principal, run_name: str, step: str, output: str
) -> tuple[str, str]:
    """The team and the digest of an output. Raises problems."""
    state = pipelines_of(app.tail.pipelines())
    run = state.runs.get(run_name)
    if run is None or not caller.reads(run.team):
        raise not_found("run")
    found = state.steps.get(step_key(run_name, step))
    if found is None:
        raise not_found("step")
    made = found.outputs.get(output)
    if made is None:
        raise not_found("output")
    return run.team, made.digest


def _manifest(store: ObjectStore, team: str, digest: str) -> ArtifactManifest:
    """The list of an artifact's files. Raises problems."""
    key = manifest_key(team, digest)
    try:
        return ArtifactManifest.decode(read_verified(store, key, digest, MAX_MANIFEST_BYTES))
    except NotFound:
        raise gone("the output") from None
    except DamagedObject:
        raise conflict("damaged", f"the list of its files {_REPAIR}") from None
    except StoreError as error:
        raise unavailable("store-away", f"the store: {type(error).__name__}") from None


@lru_cache(maxsize=4)
def _by_path(store: ObjectStore, team: str, digest: str) -> Mapping[str, ArtifactFile]:
    """The files of an artifact; read once for the many requests that bring one after the other."""
    return {file.path: file for file in _manifest(store, team, digest).files}


def _parts(store: ObjectStore, team: str, file: ArtifactFile) -> Iterator[bytes]:
    """The bytes in chunks. Raises problems before the first."""
    key = object_key(team, file)
    try:
        if store.head(key).size_bytes != file.size_bytes:
            raise conflict("damaged", f"the file {_REPAIR}")
        return store.stream(key, _CHUNK_BYTES)
    except NotFound:
        raise gone("the file") from None
    except StoreError as error:
        raise unavailable("store-away", f"the store: {type(error).__name__}") from None
