"""Turns an interpreter that has torch imported into a rank, as if it were a fresh one.

It is asked over one end of a socket pair. A request is a frame (4 bytes of length, then JSON:
`WarmRequest`), with the rank's stdout, its stderr, a gate and, if it has a sandbox, its pidfd
as file descriptors beside its first byte. Answers are JSON lines: {"ready": true}, {"pid": N},
{"refused": WHY} (start it cold), or {"unfit": WHY} (start all of them cold).

The rank does nothing before the agent has opened the gate: from then on the agent knows its pid.
Requests with variables that a fresh interpreter reads at its start (`COLD_VARIABLES`), or with
modules in the job's own folder that it would import instead, are refused.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import json
import os
import random
import runpy
import signal
import socket
import sys
import tempfile
import traceback
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gangline_worker.agent.isolation.rank_exec import HANDED_DOWN, confine, tie_to

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


@dataclass(frozen=True, slots=True)
class WarmRequest:
    """One rank: `arguments` follow `python`, either `-m MODULE ...` or `SCRIPT ...`.

    `orders` are those of `rank_exec.confine`. Without a token it is not a rank but a process of the
    agent's own.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str
    orders: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """As it is sent."""
        fields = (self.arguments, dict(self.environment), self.folder, self.orders)
        text = json.dumps(fields).encode()
        return len(text).to_bytes(4, "big") + text


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


def refusal(request: WarmRequest, loaded: frozenset[str]) -> str | None:
    """Why it needs a fresh interpreter; None when it does not.

    `loaded`: the names of all top-level modules that are imported here.
    """
    if sum(1 for _ in Path("/proc/self/task").iterdir()) != 1:
        return "the warm interpreter has a second thread"
    name = cold_variable(request.environment, os.environ)
    if name is not None:
        return f"{name} is read by a fresh interpreter only"
    first = Path(request.folder)
    if request.arguments[0] != "-m":
        script = first / request.arguments[0]
        if not script.is_file():
            return f"{script} is not a file"
        first = script.parent
    with contextlib.suppress(OSError):
        for entry in first.iterdir():
            if entry.name.partition(".")[0] in loaded and _can_be_imported(entry):
                return f"{entry.name} stands before an installed module"
    return None


def _can_be_imported(entry: Path) -> bool:
    return entry.suffix in {".py", ".so", ".pyc"} or (entry.is_dir() and entry.suffix == "")


def become(request: WarmRequest, descriptors: list[int], agent: int) -> None:
    """Wait for the gate, then be what a fresh process with this request would be."""
    if os.getsid(0) != os.getpid():
        os.setsid()
    stdout, stderr, gate, *sandbox = descriptors
    if not os.read(gate, 1):
        os._exit(1)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.chdir(request.folder)
    try:
        confine(request.orders, sandbox[0] if sandbox else None)
    except OSError as error:
        sys.stderr.write(f"gangline: {error}\n")
        os._exit(126)
    tie_to(agent)
    os.closerange(3, max(descriptors) + 1)
    for number in HANDED_DOWN:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.umask(0o077)
    _be_found_by(request.environment.get(TOKEN_VARIABLE))
    os.environ.clear()
    os.environ.update(request.environment)
    tempfile.tempdir = None  # else it is the warm interpreter's
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    # Always: the first call in a fork makes torch's pool again, and must not be two at once.
    threads = request.environment.get("OMP_NUM_THREADS", "")
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
            sys.path[0] = str(Path.cwd())
            # As the interpreter itself does: `run_module` fails in other words.
            runpy._run_module_as_main(arguments[1])  # type: ignore[attr-defined] # noqa: SLF001
        else:
            path = Path(arguments[0]).absolute()
            sys.argv = list(arguments)
            sys.path[0] = str(path.parent)
            program.__file__ = str(path)
            code = compile(path.read_bytes(), path, "exec")
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


def begin() -> tuple[socket.socket, int]:
    """First step of a warm interpreter: its end of the socket pair (`argv[1]`), the agent's pid.

    It dies with the agent, and what ends the agent in an orderly way is the agent's to pass on.
    """
    agent = os.getppid()
    tie_to(agent)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return socket.socket(fileno=int(sys.argv[1])), agent


def answer(control: socket.socket, **values: object) -> None:
    """Send one answer."""
    control.sendall(json.dumps(values).encode() + b"\n")


def receive(control: socket.socket) -> tuple[WarmRequest, list[int]] | None:
    """The next request; None when the agent has closed its end."""
    descriptors = array.array("i")
    data, ancillary, _, _ = control.recvmsg(4, socket.CMSG_SPACE(4 * descriptors.itemsize))
    if not data:
        return None
    for _, _, raw in ancillary:
        descriptors.frombytes(raw[: len(raw) - len(raw) % descriptors.itemsize])
    while len(data) < 4:
        data += control.recv(4 - len(data))
    rest = int.from_bytes(data, "big")
    text = bytearray()
    while len(text) < rest:
        part = control.recv(rest - len(text))
        if not part:
            return None
        text += part
    arguments, environment, folder, orders = json.loads(text)
    request = WarmRequest(tuple(arguments), environment, folder, tuple(orders))
    return request, list(descriptors)
