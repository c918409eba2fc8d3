"""Every page of the console, on a platform that has something to show on each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from gangline.sdk import Gangline
from gangline_console.pages import PAGES
from gangline_console.pages.job.tabs import TABS
from gangline_schemas.gate_file import Gate
from support.harnesses.log_watch import PACED, job_spec
from support.waiting import wait_until

FAILING = ["python", "-c", "import sys; print('loading data'); sys.exit('disk is full')"]

STUDY: dict[str, Any] = {
    "name": "lr-sweep", "team": "default", "objective": {"metric": "eval_loss"},
    "space": {
        "lr": {"type": "float", "low": 1e-4, "high": 1e-1, "log": True},
        "opt": {"type": "choice", "values": ["sgd", "adam"]},
    },
    "sampler": "random", "limits": {"trials": 2, "parallel": 1},
    "job": {
        "resources": {"gpus": 1, "memory_per_gpu_gb": 1},
        "command": [
            "python", "-c",
            "import gangline_worker as w; w.report({'eval_loss': ${{ lr }}}, 9); w.flush()",
        ],
    },
}  # fmt: skip


PIPELINE: dict[str, Any] = {
    "name": "nightly", "team": "default", "description": "From new text to a report",
    "steps": {
        "prepare": {"job": {"run": "true", "resources": {"gpus": 1}}},
        "train": {
            "job": {"run": "true", "resources": {"gpus": 1}}, "after": ["prepare"], "each": [1, 2],
        },
    },
    "triggers": {"new-text": {"snapshot": "web-*"}, "nightly": {"schedule": "0 3 * * *"}},
}  # fmt: skip


MODEL_GATE = Gate.model_validate(
    {
        "team": "default", "model": "ticket-tagger", "aliases": ["champion"], "baseline": "current",
        "suites": {"qa": {"rule": "better"}},
    }
)  # fmt: skip


@dataclass(frozen=True)
class Seeded:
    """Jobs of every kind, and a node."""

    running: str
    waiting: str
    failed: str
    ended: str
    node: str
    study: str = "s"
    pipeline_run: str = "r"


def seed(gateway: Gangline, program: Mapping[str, Any] | None = None) -> Seeded:
    """A job that runs, one that waits for GPUs, a failed one, one that ended.

    `program`: fields of the first and the last, in place of their command.
    """
    paced = program or {"command": PACED}
    gateway.set_gate(MODEL_GATE)
    nodes = gateway.nodes()
    gpus = sum(len(node.gpus) for node in nodes)
    failed = gateway.submit(job_spec("loads-data", command=FAILING)).job_id
    ended = gateway.submit(job_spec("first-try", **paced, hyperparameters={"steps": 30})).job_id
    wait_until("the ends", lambda: gateway.get(failed).ended and gateway.get(ended).ended)
    running = gateway.submit(
        job_spec(
            "llama-sft", **paced, env={"PAUSE_S": "0.3"}, hyperparameters={"steps": 100_000},
            expected_runtime_hours=8.5,
        )
    ).job_id  # fmt: skip
    wait_until("steps", lambda: (gateway.get(running).step or 0) > 5)
    waiting = gateway.submit(job_spec("llama-large", resources={"gpus": gpus})).job_id
    wait_until("the reason", lambda: gateway.get(waiting).waiting)
    study = gateway.submit_study(STUDY).study_id
    gateway.apply_pipeline(PIPELINE)
    pipeline_run = gateway.run_pipeline("nightly").run_id
    return Seeded(running, waiting, failed, ended, nodes[0].node_id, study, pipeline_run)


def stops(seeded: Seeded) -> dict[str, str]:
    """Addresses by name, below /console: all GET routes but downloads."""
    job = f"/jobs/{seeded.running}"
    return {
        "overview": "/overview",
        "jobs": "/jobs",
        "job": job,
        **{f"job-{tab}": f"{job}?tab={tab}" for tab in TABS if tab != "overview"},
        "job-waiting": f"/jobs/{seeded.waiting}",
        "job-failed": f"/jobs/{seeded.failed}",
        "runs": "/runs",
        "compare": f"/compare?runs={quote(f'{seeded.ended},{seeded.running}')}",
        "studies": "/studies",
        "study": f"/studies/{seeded.study}",
        **{
            f"study-{tab}": f"/studies/{seeded.study}?tab={tab}"
            for tab in ("axes", "trials", "config")
        },
        "pipelines": "/pipelines",
        "pipeline": "/pipelines/nightly?team=default",
        "pipeline-run": f"/pipelines/runs/{seeded.pipeline_run}?step=prepare",
        "models": "/models",
        "model": "/models/ticket-tagger?team=default",
        "model-move": "/models/ticket-tagger/move?alias=champion&team=default",
        "nodes": "/nodes",
        "node": f"/nodes/{seeded.node}",
        "teams": "/teams",
        "weekly": "/teams/weekly",
        "incidents": "/incidents?days=all",
        "incident": f"/incidents/{seeded.failed}/1",
        "time": "/time",
        "queue": "/queue",
        "submit": "/submit",
        "alerts": "/alerts",
        "alert-rules": "/alerts/rules",
        "deliveries": "/alerts/deliveries",
        "silence": "/alerts/silence?rule=queue-wait",
        "health": "/health",
        "dead-letters": "/health/dead-letters",
        "search": "/search?q=llama",
        "docs": "/docs",
        "doc": "/docs/guides/console.md",
        "components": "/components",
    }


def routes() -> set[str]:
    """GET routes of all pages that a browser shows."""
    paths = {path for page in PAGES for path in page.get}
    return {path for path in paths if not path.endswith((".csv", ".yaml"))}
