"""`python -m gangline_worker.agent`: the node agent of one machine."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import structlog

from gangline_bus.kafka import KafkaBus
from gangline_bus.ports import Bus
from gangline_service.lifecycle import Context, Restart, end_denied, run

from .app import Agent
from .config import AgentSettings
from .handover import refusal, take_over
from .host.inventory import DriverUnusable
from .host.resource_limits import raise_limits
from .host_resources import DataFolderTaken, DataFolderTooLong
from .isolation.isolator import IsolationMissing
from .renewal import TRIAL_OPTION
from .runtime.rank_env_file import BadRankEnvFile

log = structlog.get_logger(__name__)
_UNUSABLE = (
    BadRankEnvFile,
    DataFolderTaken,
    DataFolderTooLong,
    DriverUnusable,
    IsolationMissing,
)


def _arguments() -> dict[str, object]:
    parser = argparse.ArgumentParser(
        prog="python -m gangline_worker.agent",
        description="Offers this machine's GPUs and runs the ranks that are placed on it.",
    )
    parser.add_argument("--data-dir", type=Path, help="work, spool and checkpoint copies")
    parser.add_argument("--node-id", help="its name in the cluster; default: the host's")
    parser.add_argument("--slots", type=int, help="offer so many CPU slots instead of GPUs")
    parser.add_argument(TRIAL_OPTION, type=int, metavar="FORMAT", help=argparse.SUPPRESS)
    given = vars(parser.parse_args())
    return {name: value for name, value in given.items() if value is not None}


def _main(context: Context[AgentSettings]) -> Restart | None:
    settings = context.settings
    log.info("agent.limits", has=raise_limits().summary)

    def connect(purpose: str) -> Bus:
        kafka = dict(settings.kafka)
        if purpose == "heartbeats":
            # A late sign of life says nothing; old ones must not hold up the next.
            kafka["message.timeout.ms"] = str(int(max(1000, settings.lease * 1000)))
        client = f"{settings.topic_prefix}gangline.agent.{settings.node_id}.{purpose}"
        return KafkaBus(
            settings.bootstrap_servers,
            client=client,
            settings=kafka,
            password=settings.kafka_password,
            on_denied=end_denied,
        )

    context.health.expect("bus")
    try:
        return Agent(context, connect, take_over()).run()
    except _UNUSABLE as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    arguments = _arguments()
    tried = arguments.pop("would_take_over", None)
    settings = AgentSettings.load(**arguments)
    if isinstance(tried, int):  # by a program in whose process this one will continue
        raise SystemExit(refusal(tried, sys.stdin.buffer.read()))
    run("agent", settings, _main, restarts=True)
