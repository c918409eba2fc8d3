"""The demo's story, step by step, and what it measured.

1. Two teams; a training job of 4 GPUs starts on all of the cluster; a second one, with another
   learning rate, waits: its reason is shown.
2. Once the first has committed checkpoints, one of its ranks is killed with SIGKILL.
3. It resumes from its last committed checkpoint in a second attempt, and finishes.
4. The second one's whole gang fits now: it starts, and finishes.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

from gangline.demo.outcome import Outcome, Say
from gangline.demo.timeline import Timeline
from gangline.sdk import Gangline
from gangline_schemas.api.jobs import Job
from gangline_schemas.api.logs import BusEvent
from gangline_schemas.api.runs import Comparison

STEPS = 60
KILL_AFTER_CHECKPOINTS = 2
START_TIMEOUT_S = 90.0
RUN_TIMEOUT_S = 240.0
LEARNING_RATES = {"language": 5e-3, "vision": 1e-3}
MODEL = {"dim": 96, "layers": 3, "heads": 4, "batch_size": 8, "seq_len": 128, "seed": 17}


@dataclass
class Story(Outcome):
    """The two jobs of the demo, and their comparison."""

    first: str = ""
    second: str = ""
    waiting: str = ""
    comparison: Comparison | None = None


def play(client: Gangline, say: Say) -> Story:
    """Play the story on a platform that is up. Raises CliError when a part does not come."""
    timeline = Timeline(client)
    timeline.start()
    outcome = Story()
    first, second = (_submit(client, team, say) for team in LEARNING_RATES)
    outcome.first, outcome.second = first.job_id, second.job_id

    running = _running(timeline, first.job_id, 1)
    outcome.figures["submit -> running (s)"] = _since(first, running)
    say(f"{first.job_id} runs on 4 GPUs of 2 nodes")
    outcome.waiting = _waiting_reason(client, second.job_id)
    say(f"{second.job_id} waits: {outcome.waiting}")

    _kill_and_resume(timeline, outcome, say)
    _finish(client, timeline, outcome, say)
    outcome.comparison = client.compare([first.job_id, second.job_id])
    timeline.close()
    return outcome


def _submit(client: Gangline, team: str, say: Say) -> Job:
    spec = {
        "name": f"{team}-model",
        "team": team,
        "project": "demo",
        "command": ["python", "-m", "gangline_worker.training"],
        "resources": {"gpus": 4, "memory_per_gpu_gb": 0.5},
        "strategy": "fsdp",
        "hyperparameters": {**MODEL, "steps": STEPS, "lr": LEARNING_RATES[team]},
        "checkpoint": {"interval_minutes": 0.05, "keep": {"latest": 3}},
        "stop_grace_seconds": 20,
    }
    job = client.submit(spec)
    say(f"submitted {job.job_id}: 4 GPUs, lr {LEARNING_RATES[team]:g}, team {team}")
    return job


def _running(timeline: Timeline, job_id: str, attempt: int) -> BusEvent:
    return timeline.wait_for(
        "job.state.changed",
        job_id,
        lambda e: e.data["state"] == "running" and e.data["attempt"] == attempt,
        START_TIMEOUT_S,
    )


def _waiting_reason(client: Gangline, job_id: str) -> str:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        job = client.get(job_id)
        if job.waiting is not None:
            return job.waiting.message
        time.sleep(0.2)
    return ""


def _kill_and_resume(timeline: Timeline, outcome: Story, say: Say) -> None:
    job_id = outcome.first
    earlier: set[int] = set()
    while len(earlier) < KILL_AFTER_CHECKPOINTS:
        committed = timeline.wait_for(
            "checkpoint.committed", job_id, lambda e: _step(e) not in earlier, RUN_TIMEOUT_S
        )
        earlier.add(_step(committed))
    say(f"checkpoints committed at steps {', '.join(map(str, sorted(earlier)))}")
    victim = next(e for e in timeline.of("worker.started", job_id) if e.data["rank"] == 2)
    os.kill(victim.data["pid"], signal.SIGKILL)
    killed_at = time.time()
    say(f"killed rank 2 (process {victim.data['pid']}) with SIGKILL")

    failed = timeline.wait_for("gang.failed", job_id, lambda _: True, START_TIMEOUT_S)
    again = timeline.wait_for(
        "gang.allocated", job_id, lambda e: e.data["attempt"] == 2, START_TIMEOUT_S
    )
    resumed_from = (again.data.get("resume") or {}).get("step", -1)
    say(f"{failed.data['message']}; attempt 2 resumes from step {resumed_from}")
    first_new = timeline.wait_for(
        "worker.step", job_id, lambda e: e.data["attempt"] == 2, START_TIMEOUT_S
    )
    last_step = max(
        step
        for event in timeline.of("worker.step", job_id)
        if event.data["attempt"] == 1
        for step in event.data["step"]
    )
    outcome.figures["kill -> first new step (s)"] = (
        min(first_new.data["time_ms"]) / 1000 - killed_at
    )
    outcome.figures["steps lost"] = last_step - resumed_from
    committed_steps = [
        _step(event)
        for event in timeline.of("checkpoint.committed", job_id)
        if event.data["checkpoint"]["attempt"] == 1
    ]
    outcome.checks["the failure names the rank that was killed"] = (
        failed.data.get("first_rank") == 2 and failed.data.get("signal") == signal.SIGKILL
    )
    outcome.checks["it resumed from its last committed checkpoint"] = resumed_from == max(
        committed_steps
    )
    outcome.checks["the first new step follows the checkpoint's"] = (
        min(first_new.data["step"]) == resumed_from + 1
    )


def _finish(client: Gangline, timeline: Timeline, outcome: Story, say: Say) -> None:
    for job_id in (outcome.first, outcome.second):
        job = client.wait(job_id, RUN_TIMEOUT_S, linger_s=START_TIMEOUT_S)
        say(f"{job_id} {job.state} at step {job.step}, loss {job.loss or float('nan'):.3f}")
        outcome.checks[f"{job_id} succeeded"] = job.state == "succeeded" and job.step == STEPS
    ended = timeline.wait_for(
        "gang.released", outcome.first, lambda e: e.data["reason"] == "succeeded", START_TIMEOUT_S
    )
    begun = timeline.of("gang.allocated", outcome.second)[0]
    outcome.checks["the second job waited, with a reason"] = (
        bool(outcome.waiting) and begun.time >= ended.time
    )
    outcome.checks["its whole gang started at once"] = (
        sum(len(node["gpus"]) for node in begun.data["nodes"]) == 4
    )
    outcome.figures["checkpoints committed"] = sum(
        len(timeline.of("checkpoint.committed", job)) for job in (outcome.first, outcome.second)
    )


def _step(event: BusEvent) -> int:
    return int(event.data["checkpoint"]["step"])


def _since(job: Job, event: BusEvent) -> float:
    submitted = job.submitted_at or event.time
    return (event.time - submitted).total_seconds()
