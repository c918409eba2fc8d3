"""Makes an interpreter that has imported much behave like a fresh one with a program.

For ranks that are forked or that standbys become (`rank`), and a program of its own for standbys in
a container image: `python FILE FD`. There it is run by the Python of the image, 3.8 or later, so it
imports the standard library alone, and no agent's code.

Such a standby is confined already, as a rank of its team. It says b"r" when it is ready. Then comes
a request (4 bytes of length, then JSON: arguments, environment, folder), and a byte once the agent
knows it as the rank. Where it cannot be like a fresh interpreter, it executes one in its place.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import random
import runpy
import socket
import sys
import tempfile
import traceback
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

TOKEN_VARIABLE = "GANGLINE_RANK_TOKEN"  # noqa: S105 -- a name
TOKEN_CHARS = 32
SOCKET_VARIABLE = "GANGLINE_AGENT_SOCKET"
COLD_VARIABLES = (
    *("PYTHON", "LD_", "GLIBC_", "MALLOC_"),
    *("OMP_", "MKL_", "KMP_", "OPENBLAS_", "TORCH_", "PYTORCH_"),
    *("TORCHDYNAMO_", "TORCHINDUCTOR_", "TRITON_"),
)
"""Variables with these beginnings are read when an interpreter or a library starts."""
_SET_AFTERWARDS = frozenset({"OMP_NUM_THREADS", "PYTHONUNBUFFERED", "TORCHINDUCTOR_CACHE_DIR"})
_MODULES = ("torch._dynamo", "torch.distributed.fsdp", "gangline_worker.training.trainer")
"""Imported in an image with torch, as far as it has them."""
READY, UNFIT = b"r", b"u"


def cold_variable(wanted: Mapping[str, str], own: Mapping[str, str]) -> str | None:
    """A variable that only a fresh interpreter would heed; None when there is none.

    `own`: what this interpreter was started with.
    """
    return next(
        (
            name
            for name, value in wanted.items()
            if name.startswith(COLD_VARIABLES)
            and name not in _SET_AFTERWARDS
            and own.get(name) != value
        ),
        None,
    )


def in_the_way(arguments: Sequence[str], folder: str, loaded: Collection[str]) -> str | None:
    """Why a program of this folder needs a fresh interpreter; None when it does not.

    `loaded`: the names of all top-level modules that are imported here.
    """
    first = folder
    if arguments[0] != "-m":
        script = os.path.join(folder, arguments[0])  # noqa: PTH118 -- also for older Pythons
        if not os.path.isfile(script):  # noqa: PTH113
            return f"{script} is not a file"
        first = os.path.dirname(script)  # noqa: PTH120
    try:
        entries = list(os.scandir(first))
    except OSError:
        return None
    for entry in entries:
        if entry.name.partition(".")[0] in loaded and _can_be_imported(entry):
            return f"{entry.name} stands before an installed module"
    return None


def _can_be_imported(entry: os.DirEntry[str]) -> bool:
    _, suffix = os.path.splitext(entry.name)  # noqa: PTH122
    return suffix in {".py", ".so", ".pyc"} or (entry.is_dir() and not suffix)


def be_fresh(environment: Mapping[str, str]) -> None:
    """Have these variables, and nothing else that a fresh interpreter has not."""
    os.umask(0o077)
    _be_found_by(environment.get(TOKEN_VARIABLE))
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # else it is the warm interpreter's
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    # Always: the first call in a fork makes torch's pool again, and must not be two at once.
    threads = environment.get("OMP_NUM_THREADS", "")
    sys.modules["torch"].set_num_threads(int(threads) if threads.isdigit() else 1)


def _be_found_by(token: str | None) -> None:
    """Show the kernel's readers the rank's token; without one: not a rank (sweep.py)."""
    if token is None:
        _show(SOCKET_VARIABLE, "." * len(os.environ[SOCKET_VARIABLE]))
    elif len(token) == TOKEN_CHARS:
        _show(TOKEN_VARIABLE, token)


def _show(name: str, value: str) -> None:
    """Write over a variable of the same length where the kernel shows a process's environment."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype, getenv.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    place = getenv(name.encode())
    if place and len(ctypes.string_at(place)) == len(value):
        ctypes.memmove(place, value.encode(), len(value))


def run(arguments: tuple[str, ...]) -> None:
    """Run the program as `python ARGUMENTS` would. Raises SystemExit."""
    program = types.ModuleType("__main__")
    sys.modules["__main__"] = program
    try:
        if arguments[0] == "-m":
            sys.argv = ["-m", *arguments[2:]]
            sys.path[0] = os.getcwd()  # noqa: PTH109
            # As the interpreter itself does: `run_module` fails in other words.
            runpy._run_module_as_main(arguments[1])  # type: ignore[attr-defined] # noqa: SLF001
        else:
            path = os.path.join(os.getcwd(), arguments[0])  # noqa: PTH109, PTH118
            sys.argv = list(arguments)
            sys.path[0] = os.path.dirname(path)  # noqa: PTH120
            program.__file__ = path
            with open(path, "rb") as file:  # noqa: PTH123
                code = compile(file.read(), path, "exec")
            exec(code, vars(program))  # noqa: S102 -- the job's own
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 -- what the interpreter would print
        _report(error)
        raise SystemExit(1) from None


def _report(error: BaseException) -> None:
    """Print it without our own frames, by the hook that the program may have set."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    hook = sys.excepthook
    try:
        hook(type(error), error.with_traceback(frames), frames)
    except Exception:  # noqa: BLE001 -- a broken hook
        traceback.print_exception(error)


def _warm_up() -> bool:
    """Import what a trainer imports; False where that gains nothing or has opened a GPU."""
    gc.disable()  # a fifth of the time would go into collections that find nothing
    try:
        importlib.import_module("torch").set_num_threads(1)
    except ImportError:
        return False
    for name in _MODULES:
        with contextlib.suppress(Exception):  # an image's torch may be too old for it
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    gc.enable()
    return not any(path.startswith("/dev/nvidia") for path in _open_files())


def _open_files() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(FileNotFoundError):  # that of the list itself
            found.append(os.readlink(f"/proc/self/fd/{name}"))  # noqa: PTH115
    return found


def _received(control: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = control.recv(size - len(found))
        if not part:
            os._exit(0)  # the agent needs it no longer
        found += part
    return found


def main() -> None:
    """Wait to be a rank until the agent goes; this returns when the rank's program has ended."""
    control = socket.socket(fileno=int(sys.argv[1]))
    sys.path[0] = os.devnull  # nothing is imported from where this file is
    ready = _warm_up()
    control.sendall(READY if ready else UNFIT)
    if not ready:
        return
    loaded = frozenset(name.partition(".")[0] for name in sys.modules)
    size = int.from_bytes(_received(control, 4), "big")
    arguments, environment, folder, _ = json.loads(_received(control, size))
    _received(control, 1)
    control.close()
    os.chdir(folder)
    if in_the_way(arguments, folder, loaded) is not None:
        os.execve(sys.executable, [sys.executable, *arguments], environment)  # noqa: S606
    be_fresh(environment)
    atexit.register(gc.unfreeze)  # else libraries complain of leaks at the end
    run(tuple(arguments))


if __name__ == "__main__":
    main()
