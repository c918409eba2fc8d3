"""A user's script that logs one metric by MLflow's client: `python -m chaos.tracking_writer URL`.

It says `ready`. A line `RUN FILE` on its input makes it log to that run until the next line; then
it says `stopped`. The file gets the steps that were acknowledged; a point's value is its step.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException

METRIC = "m"
SIZES = (1, 1, 10, 200)
PAUSE_S = 0.02
"""Between two requests, which take as long: else the clients take most of the CPU."""


def acknowledged(file: Path) -> set[int]:
    """The steps that a file names."""
    found: set[int] = set()
    for line in file.read_text().splitlines() if file.exists() else ():
        first, _, count = line.partition(" ")
        found.update(range(int(first), int(first) + int(count)))
    return found


def main(url: str) -> None:
    """Log until the input ends."""
    client, going = MlflowClient(url), threading.Event()
    client.search_experiments(max_results=1)  # loads what the first request needs
    print("ready", flush=True)
    for line in sys.stdin:
        run_id, _, name = line.strip().partition(" ")
        going.set()
        listener = threading.Thread(target=_await_stop, args=(going,))
        listener.start()
        file = Path(name)
        step = max(acknowledged(file), default=0) + 1000  # beyond what was sent before
        with file.open("a") as acks:
            while going.is_set():
                size = random.choice(SIZES)
                if _log(client, run_id, range(step, step + size)):
                    acks.write(f"{step} {size}\n")
                    acks.flush()
                step += size
                time.sleep(PAUSE_S)
        listener.join()
        print("stopped", flush=True)


def _await_stop(going: threading.Event) -> None:
    sys.stdin.readline()
    going.clear()


def _log(client: MlflowClient, run_id: str, steps: range) -> bool:
    """Whether the server acknowledged the points; the client tries again by itself."""
    try:
        if len(steps) == 1:
            client.log_metric(run_id, METRIC, float(steps[0]), step=steps[0])
        else:
            client.log_batch(run_id, [Metric(METRIC, float(step), step, step) for step in steps])
    except MlflowException:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1])
