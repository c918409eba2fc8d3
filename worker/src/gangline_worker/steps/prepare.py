"""`python -m gangline_worker.steps.prepare INPUT...`: a snapshot of tokens from text.

- out: `snapshot` (folder): what `gangline data prepare` makes, for `data` of a training job.

The snapshot's profile goes to the platform, if the job has a token of it.
An input is a file or folder; names that begin with `in:` are inputs of the step (`in:text`).
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gangline_worker.data.__main__ import main as prepare
from gangline_worker.data.errors import DataError
from gangline_worker.data.profile import PROFILE_FILE, SnapshotProfile
from gangline_worker.data.step_inputs import placed
from gangline_worker.steps.folders import StepError, output
from gangline_worker.steps.reports import Gateway

_LEFT_OUT = {"sources.json", PROFILE_FILE}
"""Files with times: equal inputs must leave equal bytes."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m gangline_worker.steps.prepare")
    parser.add_argument("inputs", nargs="+")
    parser.add_argument("--name", default="corpus", help="of the corpus")
    parser.add_argument("--tokenizer", default="bytes")
    parser.add_argument("--no-profile", action="store_true")
    options = parser.parse_args(arguments)
    try:
        target = output("snapshot")
        if target is None:
            raise StepError("declare the output: `out: {snapshot: folder}`")
        inputs = [placed(text) for text in options.inputs]
    except (StepError, DataError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "snapshot")
        common = ["--out", str(made), "--name", options.name, "--tokenizer", options.tokenizer]
        if options.no_profile:
            common.append("--no-profile")
        code = prepare(["prepare", *common, *inputs])
        if code:
            return code
        if not options.no_profile:
            _send_profile(made / PROFILE_FILE)
        for path in made.iterdir():
            if path.is_file() and path.name not in _LEFT_OUT and path.suffix != ".lock":
                shutil.copy2(path, target / path.name)
    return 0


def _send_profile(path: Path) -> None:
    """The data are there without it, so a gateway that does not take it ends no step."""
    gateway = Gateway.of_job()
    if gateway is None:
        return
    try:
        gateway.profile(SnapshotProfile.decode(path.read_bytes()))
    except StepError as error:
        sys.stderr.write(f"the profile of the snapshot is not sent: {error}\n")


if __name__ == "__main__":
    raise SystemExit(main())
