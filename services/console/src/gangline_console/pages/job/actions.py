"""Actions on a job: priority, checkpoints, the job again, its job file."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from starlette.responses import Response

from gangline_console.client import job_path
from gangline_console.forms import FormError
from gangline_console.page import Handler, View
from gangline_schemas.api.checkpoints import Checkpoint
from gangline_schemas.api.jobs import Job
from gangline_schemas.api.runs import Restored
from gangline_schemas.job_file import write_document

DONE = {
    "priority": "The new priority counts from the scheduler's next pass.",
    "pinned": "The checkpoint is pinned: retention does not delete it.",
    "unpinned": "The checkpoint is not pinned any more: the job's retention decides.",
    "restored": "The gang stops, and the job resumes from that checkpoint.",
    "again": "This is the new job, with the same spec.",
    "continued": "This new job resumes from the checkpoint of the ended one.",
    "promoting": "This run loads the checkpoint; if it succeeds, the checkpoint is promoted.",
}
"""Notes of the page after an action, by the address's `done`."""


async def _priority(view: View) -> Response:
    job_id = view.path("job_id")
    value = _whole(view, "priority")
    await view.api.post(f"{job_path(job_id)}/priority", Job, {"priority": value})
    return _to(view, job_id, "priority")


async def _pin(view: View) -> Response:
    """Without `sure`, an unpin is the page that says what may be lost."""
    job_id, step = view.path("job_id"), _whole(view, "step")
    pinned = view.form.get("pinned") == "1"
    if not pinned and not view.form.get("sure"):
        job = await view.api.get(job_path(job_id), Job)
        return view.render("job/unpin.html", job=job, step=step)
    path = f"{job_path(job_id)}/checkpoints/{step}/pin"
    await view.api.post(path, Checkpoint, {"pinned": pinned})
    return _to(view, job_id, "pinned" if pinned else "unpinned", "checkpoints")


async def _promote(view: View) -> Response:
    job_id, step = view.path("job_id"), _whole(view, "step")
    path = f"{job_path(job_id)}/checkpoints/{step}/promote"
    made = await view.api.post(path, Job, key=view.form.get("key"))
    return _to(view, made.job_id, "promoting")


async def _restore(view: View) -> Response:
    """Without `sure`, the page that says what is lost."""
    job_id, step = view.path("job_id"), _whole(view, "step")
    if not view.form.get("sure"):
        job = await view.api.get(job_path(job_id), Job)
        return view.render("job/restore.html", job=job, step=step)
    path = f"/training-runs/{quote(job_id, safe='')}/checkpoints/{step}/restore"
    made = await view.api.post(path, Restored, key=view.form.get("key"))
    if made.run_id == job_id:
        return _to(view, job_id, "restored")
    return _to(view, made.run_id, "continued")


async def _again(view: View) -> Response:
    job = await view.api.get(job_path(view.path("job_id")), Job)
    if job.spec is None:
        raise FormError(409, "this version cannot read the job's spec; submit its job file")
    body = job.spec.without_trial().model_dump(mode="json", exclude_defaults=True)
    made = await view.api.post("/v1/training-jobs", Job, body, key=view.form.get("key"))
    return _to(view, made.job_id, "again")


async def job_file(view: View) -> Response:
    """The spec as a job file, to submit it again from anywhere."""
    job = await view.api.get(job_path(view.path("job_id")), Job)
    if job.spec is None:
        raise FormError(409, "this version cannot read the job's spec")
    headers = {"content-disposition": f'attachment; filename="{job.job_id}.yaml"'}
    return Response(
        write_document(job.spec.without_trial()), media_type="text/yaml", headers=headers
    )


def _to(view: View, job_id: str, done: str, tab: str = "") -> Response:
    part = f"&tab={tab}" if tab else ""
    return view.go(f"/jobs/{quote(job_id, safe='')}?done={done}{part}")


def _whole(view: View, name: str) -> int:
    text = view.form.get(name).strip()
    if not text.isascii() or not text.isdigit():
        raise FormError(422, f"{name}: give a whole number")
    return int(text)


ACTIONS: Mapping[str, Handler] = {
    "priority": _priority,
    "pin": _pin,
    "promote": _promote,
    "restore": _restore,
    "again": _again,
}
