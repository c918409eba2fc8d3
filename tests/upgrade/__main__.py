"""`PYTHONPATH=tests python -m upgrade`: this release with the one before, under running jobs.

Both run from their wheels, in environments of their own: an agent that takes over in place finds
its files where they were. Exit codes: 0 nothing was lost, 1 something was.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

from gangline.local.platform import PlatformSettings
from gangline.local.stop_signals import stop_signals_interrupt
from support.fixtures.platform import TEAMS
from support.harnesses.log_watch import LogWatch
from upgrade.jobs import Jobs
from upgrade.mixed import BEFORE, READY_S, THIS, MixedPlatform
from upgrade.releases import ROOT, git, install, of_revision
from upgrade.story import ORDER, Story, Verdict, table

say = partial(print, flush=True)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m upgrade", description=__doc__)
    parser.add_argument("--before", default="HEAD~100", help="the revision of the release before")
    parser.add_argument("--part", action="append", choices=ORDER, help="only these processes")
    parser.add_argument("--alone", action="store_true", help="also each part alone")
    parser.add_argument("--logs", type=Path, help="copy the logs of all processes there")
    return parser.parse_args()


def main() -> int:
    """The exit code."""
    options = parse()
    with stop_signals_interrupt(), tempfile.TemporaryDirectory(prefix="gangline-up-") as name:
        folder = Path(name)
        say(f"before: {git('log', '-1', '--format=%h %ad', '--date=iso', options.before)}")
        before = of_revision(options.before)
        this = install(ROOT, folder / THIS)
        teams = folder / "teams.yaml"
        teams.write_text(TEAMS)
        settings = PlatformSettings(
            data_dir=folder / "platform", nodes=2, slots=4, teams_file=teams,
            heartbeat_interval_s=0.5, ready_timeout_s=READY_S,
        )  # fmt: skip
        try:
            verdict = run(MixedPlatform(settings, {BEFORE: before, THIS: this}), folder, options)
        finally:
            if options.logs:
                shutil.copytree(settings.data_dir / "logs", options.logs, dirs_exist_ok=True)
    for line in table(verdict):
        say(line)
    return 0 if verdict.good else 1


def run(platform: MixedPlatform, folder: Path, options: argparse.Namespace) -> Verdict:
    """The story on a platform that starts and stops here."""
    with platform:
        client = platform.start()
        if platform.added:
            say(f"only of this release: {', '.join(sorted(platform.added))}")
        with LogWatch(client.bootstrap_servers) as watch:
            story = Story(platform, watch, Jobs(watch, client, folder / "until"), say)
            return story.run(parts=options.part or ORDER, alone=options.alone)


if __name__ == "__main__":
    sys.exit(main())
