"""`python -m gangline_worker.steps.prepare INPUT...`: a snapshot of tokens from text.

- out: `snapshot` (folder): what `gangline data prepare` makes, for `data` of a training job.

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
from gangline_worker.data.profile import PROFILE_FILE
from gangline_worker.data.step_inputs import placed
from gangline_worker.steps.folders import StepError, output

_LEFT_OUT = {"sources.json", PROFILE_FILE}
"""Files with times: equal inputs must leave equal bytes."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m gangline_worker.steps.prepare")
    parser.add_argument("inputs", nargs="+")
    parser.add_argument("--name", default="corpus", help="of the corpus")
    parser.add_argument("--tokenizer", default="bytes")
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
        code = prepare(["prepare", *common, *inputs])
        if code:
            return code
        for path in made.iterdir():
            if path.is_file() and path.name not in _LEFT_OUT and path.suffix != ".lock":
                shutil.copy2(path, target / path.name)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
