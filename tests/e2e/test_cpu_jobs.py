"""Jobs without GPUs on the real platform: they run, save, are billed, and yield to a gang."""

from __future__ import annotations

from playwright.sync_api import expect

from gangline.sdk import connect
from support.fixtures.platform import RunningPlatform
from support.harnesses.console_page import ConsolePage
from support.harnesses.log_watch import PACED
from support.waiting import wait_until

NEED = {"gpus": 0, "cpus": 1.5, "memory_gb": 0.2, "nodes": 2}
SHOWS = "import os; print({name: os.environ[name] for name in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', \
'CUDA_VISIBLE_DEVICES', 'OMP_NUM_THREADS')})"


def test_a_job_without_gpus_has_a_rank_on_each_node_and_its_cpus_are_billed(
    platform: RunningPlatform,
) -> None:
    with platform.watching() as watch, connect(platform.client.url, platform.client.token) as rest:
        job = watch.submit("prepare", command=["python", "-c", SHOWS], resources=NEED)
        assert watch.wait_state(job, "succeeded", "failed").data.state == "succeeded"
        (gang,) = (seen.data for seen in watch.of("gang.allocated", job))
        assert [(len(part.gpus), part.first_rank) for part in gang.nodes] == [(0, 0), (0, 1)]
        assert len({part.node_id for part in gang.nodes}) == 2
        charged = watch.wait_for(lambda s: s.type == "usage.charged" and s.data.job_id == job).data
        assert (charged.gpus, charged.cpus) == (0, 3)
        assert charged.cpu_seconds > 0
        watch.wait_for(lambda s: s.type == "alert.job.left" and s.data.job_id == job)
        wait_until("both lines", lambda: len(list(rest.logs(job))) == 2)
        assert sorted(line.text for line in rest.logs(job)) == [
            f"{{'RANK': '{rank}', 'WORLD_SIZE': '2', 'LOCAL_RANK': '0', "
            "'CUDA_VISIBLE_DEVICES': '', 'OMP_NUM_THREADS': '1'}"
            for rank in range(2)
        ]
        assert rest.get(job).cpus == 3
        (team,) = (one for one in rest.teams() if one.team == "default")
        assert team.cpu_hours_this_month > 0


def test_it_stops_for_a_gang_that_needs_its_cpus_and_resumes_after_it(
    platform: RunningPlatform, console: ConsolePage
) -> None:
    with platform.watching() as watch, connect(platform.client.url, platform.client.token) as rest:
        job = watch.submit(
            "features", command=PACED, resources=NEED, hyperparameters={"steps": 1_000_000}
        )
        saved = watch.wait_for(
            lambda s: s.type == "checkpoint.committed" and s.data.job_id == job
        ).data.checkpoint
        console.go(f"/jobs/{job}")
        expect(console.page.get_by_text("without GPUs")).to_be_visible()
        wide = watch.submit(
            "wide",
            command=["python", "-c", "pass"],
            resources={"gpus": 2, "cpus_per_gpu": 4, "memory_per_gpu_gb": 0.1},
        )
        released = watch.wait_for(lambda s: s.type == "gang.released" and s.data.job_id == job).data
        assert released.reason == "preempted"
        allocated, given = (watch.of(kind, name)[0] for kind, name in (
            ("gang.allocated", wide), ("gang.released", job),
        ))  # fmt: skip
        assert given.offset - allocated.offset <= 4, "one decision: no GPU waited"
        assert watch.wait_state(wide, "succeeded", "failed").data.state == "succeeded"
        again = watch.wait_for(
            lambda s: s.type == "gang.allocated" and s.data.job_id == job and s.data.attempt == 2
        ).data
        assert again.resume.step >= saved.step
        watch.wait_step(job, again.resume.step + 1, attempt=2)
        for page in ("/", "/jobs", "/nodes", "/queue", "/teams", f"/jobs/{job}?tab=explain"):
            console.go(page)
        node = again.nodes[0].node_id
        (shown,) = (one for one in rest.nodes() if one.node_id == node)
        assert (shown.cpus_used, shown.jobs) == (1.5, [job])
        assert not watch.of("gang.failed", job)
        rest.cancel(job)
        watch.wait_state(job, "cancelled")
