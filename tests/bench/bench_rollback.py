"""From the request of a rollback to its decision, and until MLflow's own client sees it.

The whole platform runs. A protected alias is moved from version 1 to 2 by an override, and back by
a rollback, again and again. MLflow's unmodified client asks through the gateway for the alias. The
slowest of 20 rollbacks counts.

- `rollback_decided_s`: until the gateway has answered that the alias moved.
- `rollback_seen_s`: until the client gets version 1, from the same moment.
"""

from __future__ import annotations

import os
import statistics
import time

from harness import Context, Result
from mlflow import MlflowClient
from platform_harness import running_platform

from gangline.sdk import Gangline, connect
from gangline_schemas.gate_file import Gate

MODEL, ALIAS, TEAM = "bench-tagger", "champion", "research"
PAUSE_S = 0.02
GATE = {
    "team": TEAM, "model": MODEL, "aliases": [ALIAS], "baseline": "current", "first": "accept",
    "checkpoint": "any", "suites": {"qa": {"at_least": 0.5}},
}  # fmt: skip


def versions(gateway: Gangline, client: MlflowClient) -> None:
    """Two versions, of which the alias points to the first."""
    client.create_registered_model(MODEL)
    run = client.create_run(client.create_experiment(MODEL)).info.run_id
    gateway.set_gate(Gate.model_validate(GATE))
    for number in (1, 2):
        client.create_model_version(MODEL, f"runs:/{run}/m{number}", run_id=run)
        gateway.register(MODEL, version=number, team=TEAM)
    promote(gateway, 1)


def promote(gateway: Gangline, number: int) -> None:
    """Move the alias whatever the gate says."""
    override = {"person": "ada", "reason": "a measurement"}
    moved = gateway.promote_version(MODEL, number, alias=ALIAS, override=override, team=TEAM)
    if not moved.moved:
        raise RuntimeError(f"the alias did not move: {moved}")


def until_seen(client: MlflowClient, number: int) -> None:
    """Wait until MLflow's client gets this version."""
    while int(client.get_model_version_by_alias(MODEL, ALIAS).version) != number:
        time.sleep(PAUSE_S)


def run(context: Context) -> list[Result]:
    """Rollbacks, each after a promotion that was seen."""
    decided, seen = [], []
    with running_platform() as platform:
        os.environ["MLFLOW_TRACKING_TOKEN"] = platform.client.token
        uri = f"{platform.client.url}/mlflow/teams/{TEAM}"
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        with connect(platform.client.url, platform.client.token) as gateway:
            versions(gateway, client)
            for _ in range(context.repeats(20, 5)):
                promote(gateway, 2)
                until_seen(client, 2)
                began = time.monotonic()
                gateway.roll_back(MODEL, alias=ALIAS, expected=2, team=TEAM)
                decided.append(time.monotonic() - began)
                until_seen(client, 1)
                seen.append(time.monotonic() - began)
    return [
        _slowest(context, "rollback_decided_s", decided),
        _slowest(context, "rollback_seen_s", seen),
    ]


def _slowest(context: Context, name: str, times: list[float]) -> Result:
    note = f"n={len(times)}, median {statistics.median(times):.2f} s"
    return context.result(name, max(times), "s", note=note)
