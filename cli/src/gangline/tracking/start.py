"""Starts a run where it belongs: the job's own, one on the server, a folder, or nowhere."""

from __future__ import annotations

import atexit
import os
import re
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, SupportsIndex, get_args

from gangline.connection import find_gateway
from gangline.errors import CliError, ExitCode
from gangline.tracking.config import mapping_of
from gangline.tracking.job import Job, JobRun, job_of, worker_report
from gangline.tracking.live import Kept, Live, Nowhere, Sink
from gangline.tracking.origin import origin_tags
from gangline.tracking.run import Run, note, status_of
from gangline.tracking.server import TrackingServer
from gangline.tracking.spool import FOLDER, Header, Spool
from gangline.tracking.values import params_of, storable, tags_of
from gangline.transport import Transport

Mode = Literal["online", "offline", "disabled"]
SPOOL_MB: Final = 1024
FIRST_ANSWER_S: Final = 30.0
_TEAM: Final = re.compile(r"/mlflow/teams/([a-z0-9-]+)$")

_active: Run | None = None
_lock = threading.RLock()


@dataclass(frozen=True)
class _Place:
    """Where a run's folder is made, and how its server is found."""

    mode: Mode
    parent: Path | None
    url: str | None
    token: str | None
    data_dir: Path | None


def init(
    project: str | None = None,
    name: str | None = None,
    config: Any = None,
    tags: str | Sequence[str] | Mapping[str, Any] = (),
    mode: Mode | None = None,
    *,
    team: str | None = None,
    run_id: str | None = None,
    dir: str | Path | None = None,  # noqa: A002 -- the name that users of W&B know
    all_ranks: bool = False,
    url: str | None = None,
    token: str | None = None,
    data_dir: str | Path | None = None,
) -> Run:
    """Start a run, which `gangline.log` then logs to. A run that is open is finished before.

    In a job, without `project`, `name` and `run_id`, it is the job's own run: its metrics are those
    of `report()`, and `config` begins with the job's hyperparameters. With one of them it is a run
    below the job's. Ranks other than 0 log nothing, unless `all_ranks`.

    Outside of jobs a run is made in the experiment TEAM/PROJECT of the token's team. `run_id`
    continues a run. `mode`: "online"; "offline" keeps the run in a folder for `gangline sync`;
    "disabled" logs nothing. `dir` is where the folder is made.

    Raises CliError if no platform is known, or if it refuses the run; TypeError or ValueError for a
    name or a value that cannot be kept. A platform that is away raises nothing.
    """
    global _active  # noqa: PLW0603 -- one run is active, as with W&B and MLflow
    job = job_of(os.environ)
    given = {} if config is None else mapping_of(config)
    params_of(given)
    header = Header(
        client_id=uuid.uuid4().hex,
        project=storable(project or os.environ.get("GANGLINE_PROJECT") or "default"),
        team=team or os.environ.get("GANGLINE_TEAM"),
        name=None if name is None else storable(name),
        tags=tags_of(_named(tags)),
        started_ms=time.time_ns() // 1_000_000,
        run_id=run_id,
    )
    parent = dir or os.environ.get("GANGLINE_DIR")
    place = _Place(
        mode=_mode(mode),
        parent=Path(parent).absolute() if parent else None,
        url=url,
        token=token,
        data_dir=Path(data_dir) if data_dir is not None else None,
    )
    own = job if (project, name, run_id) == (None, None, None) else None
    with _lock:
        finish()
        if place.mode == "disabled" or (_rank() > 0 and not all_ranks):
            sink: Sink = Nowhere()
        elif own is not None:
            sink = _job_sink(own, header, place)
        else:
            sink = _run_sink(job, header, place, named=project is not None)
        _active = run = Run(
            sink,
            name=name,
            project=header.project,
            fixed={} if own is None else own.hyperparameters,
            mode=place.mode,
            run_id=run_id if own is None else own.run_id,
        )
    run.config.update(given)
    if run.url is not None:
        note(f"run {name or run.id}: {run.url}")
    return run


def active_run() -> Run | None:
    """The run that `log` logs to; None: there is none."""
    return None if _active is None or _active.finished else _active


def log(metrics: Mapping[str, Any], step: SupportsIndex | None = None) -> None:
    """Log one step's metrics to the active run, as `Run.log`. Raises RuntimeError without one."""
    _running().log(metrics, step)


def log_artifact(path: str | Path, name: str | None = None) -> None:
    """Keep a file or a folder with the active run, as `Run.log_artifact`."""
    _running().log_artifact(path, name)


def finish(exit_code: int = 0) -> None:
    """Finish the active run, if there is one."""
    run = active_run()
    if run is not None:
        run.finish(exit_code)


def _running() -> Run:
    run = active_run()
    if run is None:
        raise RuntimeError("no run is active; call gangline.init() first")
    return run


def _mode(given: str | None) -> Mode:
    wanted = given or os.environ.get("GANGLINE_MODE") or "online"
    for mode in get_args(Mode):
        if wanted == mode:
            return mode  # type: ignore[no-any-return]
    raise ValueError(f"mode: {wanted!r} is none of {', '.join(get_args(Mode))}")


def _rank() -> int:
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdecimal() else 0


def _job_sink(job: Job, header: Header, place: _Place) -> Sink:
    """The job's own run; its folder and its connection are made when something needs them."""
    own = header.model_copy(update={"run_id": job.run_id, "sets_status": False})
    reporting = worker_report()

    def others() -> Sink:
        if place.mode == "offline":
            return _spooled(own, place, None)
        try:
            server = _job_server(job)
        except CliError as error:
            note(
                f"{error.message}: parameters, tags and artifacts are kept on this node only"
                + ("" if place.parent else "; name a folder that outlives the job: dir=...")
            )
            server = None
        return _spooled(own, place, server)

    if reporting is None:
        return others()
    sink = JobRun(reporting, others)
    if header.tags:
        sink.record(["tags", header.tags])
    return sink


def _named(tags: str | Sequence[str] | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(tags, str):
        tags = [tags]
    return tags if isinstance(tags, Mapping) else dict.fromkeys(tags, "true")


def _run_sink(job: Job | None, header: Header, place: _Place, *, named: bool) -> Sink:
    """A run of its own; `named`: the script named its project. Raises CliError."""
    server = None
    if place.mode == "online":
        server = (
            _job_server(job) if job is not None and place.url is None else _server(header, place)
        )
    context = {} if job is None else job.context
    experiment = None
    if job is not None and job.experiment is not None and place.url is None:
        jobs, _, _ = job.experiment.rpartition("/")
        experiment = f"{jobs}/{header.project}" if jobs and named else job.experiment
    made = header.model_copy(
        update={"tags": {**origin_tags(), **context, **header.tags}, "experiment": experiment}
    )
    sink = _spooled(made, place, server)
    if isinstance(sink, Live):
        _await(sink)
    if made.run_id is not None:
        sink.record(["status", "RUNNING", None])
    return sink


def _await(live: Live) -> None:
    """Wait until the run is made, or the server is known to be away. Raises CliError."""
    if not live.wait_for_run(FIRST_ANSWER_S) and live.refused is not None:
        live.discard()
        code = ExitCode.NOT_FOUND if live.refused.status == 404 else ExitCode.TOOL_ERROR
        raise CliError(str(live.refused), "", code)
    live.say_if_unanswered()


def _spooled(header: Header, place: _Place, server: TrackingServer | None) -> Kept:
    started = time.strftime("%Y%m%d-%H%M%S", time.gmtime(header.started_ms / 1000))
    spool = _make_spool(f"{started}-{header.client_id[:8]}", header, place.parent)
    limit_bytes = _spool_bytes()
    if server is None:
        return Kept(spool, note, limit_bytes=limit_bytes)
    return Live(spool, server, note, limit_bytes=limit_bytes)


def _make_spool(name: str, header: Header, parent: Path | None) -> Spool:
    """The run's folder; without a `parent` where it can be written. Raises CliError."""
    try:
        if parent is not None:
            return Spool.make(parent / name, header)
        try:
            return Spool.make(Path(FOLDER).absolute() / name, header)
        except OSError:  # the working directory is not to be written
            return Spool.make(Path(tempfile.mkdtemp(prefix=f"{FOLDER}-")) / name, header)
    except OSError as error:
        raise CliError(
            f"{parent or FOLDER}: {error.strerror}", "name another folder: dir=..."
        ) from None


def _server(header: Header, place: _Place) -> TrackingServer:
    """The gateway's, as for the command line; else what MLflow's variables name."""
    try:
        transport = find_gateway(place.url, place.token, place.data_dir)
    except CliError as error:
        uri = os.environ.get("MLFLOW_TRACKING_URI", "")
        if not uri.startswith(("http:", "https:")):
            hint = f'{error.hint}, or give mode="offline"'
            raise CliError(error.message, hint, error.code) from None
        return _mlflow(uri, os.environ.get("MLFLOW_TRACKING_TOKEN", ""))
    return TrackingServer(transport, team=header.team)


def _job_server(job: Job) -> TrackingServer:
    if job.tracking_uri is None:
        raise CliError("this job has no MLFLOW_TRACKING_URI", 'give mode="offline"')
    return _mlflow(job.tracking_uri, job.token, unencrypted=True)


def _mlflow(uri: str, token: str, *, unencrypted: bool = False) -> TrackingServer:
    found = _TEAM.search(uri.rstrip("/"))
    transport = Transport(uri, token, unencrypted=unencrypted)
    return TrackingServer(transport, base="", team=found[1] if found else None)


def _spool_bytes() -> int:
    text = os.environ.get("GANGLINE_SPOOL_MB", str(SPOOL_MB))
    if not text.isdecimal() or not int(text):
        raise ValueError(f"GANGLINE_SPOOL_MB: {text!r} is not a number of MB from 1 on")
    return int(text) << 20


def _finish_at_exit() -> None:
    run = active_run()
    if run is None:
        return
    interactive = hasattr(sys, "ps1") or "ipykernel" in sys.modules
    error = None if interactive else getattr(sys, "last_value", None)
    with suppress(KeyboardInterrupt):  # `close` has said where the rest is kept
        run.end(status_of(error))


def _in_child() -> None:
    global _lock  # noqa: PLW0603
    _lock = threading.RLock()
    if _active is not None:
        _active.become_child()


atexit.register(_finish_at_exit)
os.register_at_fork(after_in_child=_in_child)
