"""The live view as a real process over real Kafka."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from gangline_bus.ports import OutRecord
from gangline_schemas.catalog import Topic
from gangline_schemas.events.steps import WorkerStep
from tracker_process import TrackerProcess, wait_until


def live(view: TrackerProcess, who: str) -> list[dict[str, Any]]:
    request = urllib.request.Request(
        f"{view.url}/v1/live", headers={"Authorization": f"Bearer {view.tokens[who]}"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return list(json.load(answer)["runs"])


def test_throughput_and_loss_of_running_jobs(kafka_bootstrap: str, tmp_path: Path) -> None:
    view = TrackerProcess(kafka_bootstrap, tmp_path, module="gangline_tracker.live")
    try:
        view.start()
        began_ms = int(time.time() * 1000)
        view.writer.send(OutRecord(view.names.name(Topic.STEPS), b"x", b"no event"))
        for step in range(40):
            for run, team in (("run-a", "nlp"), ("run-b", "vision")):
                event = WorkerStep(
                    run_id=run,
                    team=team,
                    attempt=1,
                    rank=0,
                    step=(step,),
                    time_ms=(began_ms + 250 * step,),
                    metrics={"loss": (4.0 - step / 100,), "tokens_per_s": (1000.0,)},
                )
                view.send(event, run)
        view.settled()
        (run,) = wait_until(
            "the last step", lambda: [r for r in live(view, "nlp") if r["step"] == 39]
        )
        assert (run["run_id"], run["steps_per_s"], run["tokens_per_s"]) == ("run-a", 4.0, 1000.0)
        assert run["loss"] == pytest.approx(3.61)
        wait_until("both", lambda: len(live(view, "admin")) == 2)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{view.url}/v1/live", timeout=30)
        assert view.end() == 0
    finally:
        view.close()
