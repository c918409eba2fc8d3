"""`gangline demo`: the whole platform, two jobs, a killed rank, on this machine."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gangline.demo.loop import play as play_loop
from gangline.demo.outcome import Outcome
from gangline.demo.report import write_figures, write_report
from gangline.demo.story import Story, play
from gangline.errors import CliError
from gangline.sdk import connect

_TEAMS = """teams:
  - {team: language, gpu_limit: 4, gpu_guarantee: 2}
  - {team: vision, gpu_limit: 4, gpu_guarantee: 2}
  - {team: default, gpu_limit: 4}
"""


def demo(
    folder: Annotated[
        Path, typer.Option("--out", help="Where the platform's state and the report go.")
    ] = Path("build/demo"),
    *,
    loop: Annotated[
        bool,
        typer.Option(
            "--loop",
            help="Show the way from new data through a study to the model that serves.",
        ),
    ] = False,
) -> None:
    """Run a job through a failure and check each step; exit 0 only if all checks pass."""
    from gangline.local.artifacts import ArtifactError, progress_line
    from gangline.local.platform import Platform, PlatformSettings
    from gangline.local.process_model import SupervisorError
    from gangline.local.stop_signals import stop_signals_interrupt

    console = Console(width=80, highlight=False)
    data_dir = folder / "platform"
    if data_dir.exists():
        shutil.rmtree(data_dir)
    data_dir.mkdir(parents=True)
    (data_dir / "teams.yaml").write_text(_TEAMS, encoding="utf-8")
    settings = PlatformSettings(
        data_dir, nodes=2, slots=2, teams_file=data_dir / "teams.yaml", heartbeat_timeout_s=30.0
    )
    began = time.monotonic()

    def say(line: str) -> None:
        console.print(f"[{time.monotonic() - began:6.1f} s] {line}", markup=False, soft_wrap=True)

    say("starting Kafka, ClickHouse, all services and two nodes of 2 slots")
    try:
        with stop_signals_interrupt(), Platform(settings, progress_line) as platform:
            started = platform.start()
            up_s = time.monotonic() - began
            say("the platform is up")
            with connect(started.url, started.token) as client:
                outcome: Outcome
                if loop:
                    outcome = play_loop(client, started.token, folder / "loop", say)
                else:
                    outcome = play(client, say)
                outcome.figures = {"platform start (s)": up_s, **outcome.figures}
                if isinstance(outcome, Story):
                    write_report(outcome, folder, console)
                else:
                    write_figures(outcome, console)
    except (SupervisorError, ArtifactError) as error:
        raise CliError(str(error), f"logs: {data_dir}/logs") from None
    except CliError as error:
        raise CliError(error.message, f"logs: {data_dir}/logs") from None
    console.print()
    shown = f"files are in {folder / 'loop'}" if loop else f"report is {folder / 'index.html'}"
    say(f"stopped; the {shown}")
    if not outcome.succeeded:
        failed = [name for name, passed in outcome.checks.items() if not passed]
        raise CliError(f"some checks failed: {'; '.join(failed)}", f"logs: {data_dir}/logs")
    say("demo: everything shown was true")
    say(f"see it in a browser: gangline up --data-dir {data_dir}")
    say(f"then the page is {started.url}/console/")
