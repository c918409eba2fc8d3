"""The process that has torch imported already, and forks ranks from itself: a warm start.

`python -m gangline_worker.agent.zygote FD`: FD is one end of a socket pair. A request is a frame
(4 bytes of length, then JSON: `ZygoteRequest`), with the rank's stdout, its stderr, a gate and, if
it has a room, that one's pidfd as file descriptors beside its first byte. Answers are JSON lines:
{"ready": true}, {"pid": N}, or {"refused": WHY} (start it cold).

A rank is forked twice, so that its parent ends and the agent, a subreaper, becomes its parent: the
agent collects its status and its death is the rank's (PDEATHSIG). The rank does nothing before the
agent has opened the gate: from then on the agent knows its pid.

Fork is safe here because this process has one thread, which is checked before each fork, and has
never touched a GPU. What a fresh interpreter would read at its start (`COLD_VARIABLES`), or import
from the job's own folder instead, is refused.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import gc
import json
import os
import random
import runpy
import signal
import socket
import sys
import traceback
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .isolation_rooms import turn_to
from .rank_exec import HANDED_DOWN, confine, tie_to

TOKEN_VARIABLE = "GANGLINE_RANK_TOKEN"  # noqa: S105 -- a name
TOKEN_CHARS = 32
COLD_VARIABLES = ("PYTHON", "LD_", "MALLOC_", "OMP_", "MKL_", "KMP_", "TORCH_", "GLIBC_")
"""Variables with these beginnings are read when an interpreter or a library starts."""
_SET_AFTERWARDS = frozenset({"OMP_NUM_THREADS", "PYTHONUNBUFFERED"})


@dataclass(frozen=True, slots=True)
class ZygoteRequest:
    """One rank: `arguments` follow `python`, either `-m MODULE ...` or `SCRIPT ...`.

    `orders` are those of `rank_exec.confine`.
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


def cold_variable(environment: Mapping[str, str]) -> str | None:
    """A variable that only a fresh interpreter would heed; None when there is none."""
    return next(
        (
            name
            for name in environment
            if name.startswith(COLD_VARIABLES) and name not in _SET_AFTERWARDS
        ),
        None,
    )


def main() -> None:
    """Serve until the agent goes; in a forked rank this returns when its program has ended."""
    control = socket.socket(fileno=int(sys.argv[1]))
    agent = os.getppid()
    tie_to(agent)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    loaded = _warm_up()
    _answer(control, ready=True)
    while True:
        received = _receive(control)
        if received is None:
            return
        request, descriptors = received
        refused = _refusal(request, loaded)
        if refused is None:
            try:
                pid = _fork_twice(descriptors[3] if len(descriptors) > 3 else None)
            except OSError as error:
                refused = f"it cannot fork: {error}"
            else:
                if pid == 0:
                    control.close()
                    _become(request, descriptors, agent)
                    _run(request.arguments)
                    return
                _answer(control, pid=pid)
        if refused is not None:
            _answer(control, refused=refused)
        for descriptor in descriptors:
            os.close(descriptor)


def _warm_up() -> frozenset[str]:
    """Import what a trainer imports and take one step; the names of all top-level modules."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    import gangline_worker.training.trainer  # noqa: F401

    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    model = torch.nn.Linear(4, 4)
    fully_shard(model)  # its lazy imports
    dist.destroy_process_group()
    sys.excepthook = sys.__excepthook__  # the group set one
    plain = torch.nn.Linear(4, 4)
    for parameter in plain.parameters():
        parameter.grad = torch.zeros_like(parameter)
    torch.optim.AdamW(plain.parameters(), fused=True).step()
    del model, plain
    gc.collect()
    gc.freeze()  # a collection in a rank does not touch, and by that copy, these pages
    return frozenset(name.partition(".")[0] for name in sys.modules)


def _refusal(request: ZygoteRequest, loaded: frozenset[str]) -> str | None:
    """Why this rank needs a fresh interpreter; None when it does not."""
    if sum(1 for _ in Path("/proc/self/task").iterdir()) != 1:
        return "the zygote has a second thread"
    name = cold_variable(request.environment)
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


def _fork_twice(room: int | None) -> int:
    """0 in the rank, its pid in the zygote, once the agent is its parent. It is born in `room`.

    Raises OSError, in the zygote, when there is no rank.
    """
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as told, os.fdopen(writing, "wb", 0) as telling:
        child = os.fork()
        if child == 0:
            try:
                if room is not None:
                    turn_to(room)
                pid = os.fork()
                if pid == 0:
                    return 0
                os.write(writing, pid.to_bytes(4, "big"))
            except OSError:
                os._exit(1)
            os._exit(0)
        telling.close()
        os.waitpid(child, 0)
        pid = int.from_bytes(told.read(4), "big")
    if pid == 0:
        raise ChildProcessError("the process between could not")
    return pid


def _become(request: ZygoteRequest, descriptors: list[int], agent: int) -> None:
    """Wait for the gate, then be what a fresh process with this request would be."""
    os.setsid()
    stdout, stderr, gate, *room = descriptors
    if not os.read(gate, 1):
        os._exit(1)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.chdir(request.folder)
    try:
        confine(request.orders, room[0] if room else None)
    except OSError as error:
        sys.stderr.write(f"gangline: {error}\n")
        os._exit(126)
    tie_to(agent)
    os.closerange(3, max(descriptors) + 1)
    for number in HANDED_DOWN:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.umask(0o077)
    _mark(request.environment[TOKEN_VARIABLE])
    os.environ.clear()
    os.environ.update(request.environment)
    atexit.register(gc.unfreeze)  # else libraries complain of leaks at the end
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    # Always: torch's pool is made anew in a fork by the first call, which must not be two at once.
    threads = request.environment.get("OMP_NUM_THREADS", "")
    sys.modules["torch"].set_num_threads(int(threads) if threads.isdigit() else 1)


def _mark(token: str) -> None:
    """Write the rank's token over the zygote's, where the kernel shows a process's environment.

    What the rank starts is found by it (sweep.py).
    """
    getenv = ctypes.CDLL(None).getenv
    getenv.restype, getenv.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    place = getenv(TOKEN_VARIABLE.encode())
    if place and len(ctypes.string_at(place)) == len(token) == TOKEN_CHARS:
        ctypes.memmove(place, token.encode(), TOKEN_CHARS)


def _run(arguments: tuple[str, ...]) -> None:
    """Run the program as `python ARGUMENTS` would. Raises SystemExit."""
    program = types.ModuleType("__main__")
    sys.modules["__main__"] = program
    try:
        if arguments[0] == "-m":
            sys.argv = ["-m", *arguments[2:]]
            sys.path[0] = str(Path.cwd())
            # What the interpreter calls itself: `run_module` fails in other words.
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


def _answer(control: socket.socket, **values: object) -> None:
    control.sendall(json.dumps(values).encode() + b"\n")


def _receive(control: socket.socket) -> tuple[ZygoteRequest, list[int]] | None:
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
    request = ZygoteRequest(tuple(arguments), environment, folder, tuple(orders))
    return request, list(descriptors)


if __name__ == "__main__":
    main()
