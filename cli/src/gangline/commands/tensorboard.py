"""`gangline tensorboard`: event files of runs, and TensorBoard over them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gangline import render
from gangline.commands.exchange import Team, named_runs
from gangline.errors import CliError
from gangline.local.stop_signals import stop_signals_interrupt
from gangline.session import Session

if TYPE_CHECKING:
    from gangline.exchange.export import ExportedRun

FOLLOW_S = 10.0
_STOP_S = 10.0


def tensorboard(
    session: Session,
    run_ids: Annotated[
        list[str], typer.Argument(metavar="RUN", help="Runs of jobs, or of MLflow.")
    ],
    logdir: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the event files are written.")
    ] = Path("gangline-tensorboard"),
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Add new points every 10 s until the runs end.")
    ] = False,
    no_start: Annotated[bool, typer.Option("--no-start", help="Only write the files.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="TensorBoard's port.")] = 6006,
    team: Team = None,
) -> None:
    """Write runs as event files for TensorBoard, and start it on this machine."""
    from gangline.exchange.tensorboard import RunFiles, folder_of

    wanted = list(dict.fromkeys(run_ids))
    runs = named_runs(session, wanted, team)
    try:
        with stop_signals_interrupt(), RunFiles(session.client, logdir, runs) as files:
            points = files.poll()
            folders = [str(logdir / folder_of(run)) for run in runs]
            session.out.show(
                {"logdir": str(logdir), "runs": folders, "points": points},
                "\n".join(folders),
            )
            session.out.note(f"{render.count(len(runs), 'run')}, {points:,} points")
            with _board(session, logdir, port, start=not no_start) as board:
                more = follow and not all(map(_ended, runs))
                while more:
                    ended = all(map(_ended, runs))
                    _pause(board)
                    runs = named_runs(session, wanted, team)
                    if new := files.poll(runs):
                        session.out.note(f"{new:,} new points")
                    more = not ended or new > 0  # the last points come after the end
                if board is not None:
                    board.wait()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CliError(f"{logdir} cannot be written: {error.strerror}") from None
    except KeyboardInterrupt:
        session.out.note(f"the event files stay in {logdir}")


def _ended(run: ExportedRun) -> bool:
    return run.row.get("ended_at") is not None


def _pause(board: subprocess.Popen[bytes] | None) -> None:
    if board is None:
        time.sleep(FOLLOW_S)
        return
    try:
        board.wait(FOLLOW_S)
    except subprocess.TimeoutExpired:
        return
    raise CliError(f"TensorBoard has ended with code {board.returncode}")


@contextmanager
def _board(
    session: Session, logdir: Path, port: int, *, start: bool
) -> Iterator[subprocess.Popen[bytes] | None]:
    """TensorBoard on the loopback address; it ends with the block. None where it is not started."""
    command = _command()
    if not start or command is None:
        if start:
            session.out.note(
                "TensorBoard is not installed: pip install tensorboard\n"
                f"then: tensorboard --logdir {logdir}"
            )
        yield None
        return
    options = ["--logdir", str(logdir), "--host", "127.0.0.1", "--port", str(port)]
    session.out.note("Ctrl-C ends TensorBoard; the files stay")
    board = subprocess.Popen([*command, *options])
    try:
        yield board
    finally:
        board.terminate()
        try:
            board.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            board.kill()


def _command() -> Sequence[str] | None:
    """How TensorBoard is started: that of this Python, or the one on the path."""
    if find_spec("tensorboard") is not None:
        return [sys.executable, "-m", "tensorboard.main"]
    found = shutil.which("tensorboard")
    return None if found is None else [found]
