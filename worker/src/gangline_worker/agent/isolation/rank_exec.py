"""Becomes the rank: run as a script, with what it gives up and the command (`tied_command`).

The rank's variables come in a file (`program`), not as this process's own: it still has all rights
of the agent, and a job's variables such as LD_AUDIT would load code into it.

It stands between fork and exec because the agent has threads, after whose fork no Python code is
safe in the child. Imports the standard library alone.
"""

import ctypes
import os
import resource
import signal
import sys
import warnings  # noqa: F401 -- os.execvpe imports it, and in an image nothing can be imported

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing it costs as much as the rest
    from collections.abc import Mapping

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_CLONE_NEWNS, _CLONE_NEWIPC = 0x0002_0000, 0x0800_0000
HANDED_DOWN = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
"""Signals that the agent may ignore by nohup or a shell; its ranks do not ignore them."""


def tied_command(
    *command: str,
    orders: tuple[str, ...] = (),
    sandbox: int | None = None,
    program: int | None = None,
) -> list[str]:
    """The command line of a process that is tied to this one, confined, and then runs `command`.

    `program`: a file of `program_file`; None: it has this process's variables and folder.
    """
    handles = ["" if handle is None else str(handle) for handle in (sandbox, program)]
    given = [str(os.getpid()), ";".join(orders), *handles]
    return [sys.executable, "-I", "-S", __file__, *given, *command]


def program_file(environment: "Mapping[str, str]", folder: str | None) -> int:
    """A file in memory with a program's variables, and where it starts if not where it is."""
    entries = [folder or "", *(f"{name}={value}" for name, value in environment.items())]
    handle = os.memfd_create("program")
    with open(handle, "wb", closefd=False) as file:
        file.write(os.fsencode("\0".join(entries)))
    return handle


def _read_program(handle: int) -> tuple[dict[str, str], str]:
    os.lseek(handle, 0, os.SEEK_SET)
    with open(handle, "rb") as file:
        folder, *entries = os.fsdecode(file.read()).split("\0")
    return dict(entry.split("=", 1) for entry in entries), folder


def _write(path: str, text: bytes) -> None:
    """As bytes: in a sandbox with an image no codec can be imported any more."""
    with open(path, "wb", buffering=0) as file:  # noqa: PTH123
        file.write(text)


def confine(orders: tuple[str, ...], sandbox: int | None) -> None:
    """Give up the rights that ranks must not have, for ever. Raises OSError.

    `sandbox` is a pidfd of a process whose mount and ipc namespaces are joined. The orders are
    `group FILE` to join a control group, `limit NAME N` for a resource limit, `user UID`, and
    `lock`: no new privileges by execution.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    folder = os.getcwd()  # noqa: PTH109 -- pathlib costs as much as the rest
    for order in orders:  # first: a sandbox with an image does not show the groups
        if order.startswith("group "):
            _write(order.removeprefix("group "), b"0")
    if sandbox is not None:
        if libc.setns(sandbox, _CLONE_NEWNS | _CLONE_NEWIPC) != 0:
            raise OSError(ctypes.get_errno(), "cannot enter the gang's namespaces")
        os.close(sandbox)
    for order in orders:
        name, *values = order.split(" ")
        if name == "group":
            continue
        if name == "limit":
            number = int(values[1])
            resource.setrlimit(getattr(resource, f"RLIMIT_{values[0]}"), (number, number))
        elif name == "user":
            number = int(values[0])
            os.setgroups([])
            os.setresgid(number, number, number)
            os.setresuid(number, number, number)
            libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # else its own /proc is not its own
        elif libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "cannot do without new privileges")
    os.chdir(folder)


def tie_to(agent: int) -> None:
    """Make this process die with its parent, the agent, and before it when memory runs out.

    After `confine`: the system forgets the tie when the user changes.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # 0 is a parent out of sight: the sandbox's first process dies with the agent, and all in it.
    if os.getppid() not in (agent, 0):  # it died before the line above
        os.kill(os.getpid(), signal.SIGKILL)
    try:  # noqa: SIM105 -- contextlib costs as much as the rest
        _write("/proc/self/oom_score_adj", b"500")
    except OSError:
        pass


def reset_signals(*more: int) -> None:
    """Undo what was handed down: signals have their defaults, and none is blocked."""
    for number in (*HANDED_DOWN, *more):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def main() -> None:
    """Run the command, tied to the agent; 127 when it does not exist, else 126."""
    agent, orders, sandbox, program = int(sys.argv[1]), *sys.argv[2:5]
    command = sys.argv[5:]
    environment, folder = _read_program(int(program)) if program else (dict(os.environ), "")
    reset_signals(signal.SIGPIPE, signal.SIGXFSZ)
    try:
        confine(tuple(filter(None, orders.split(";"))), int(sandbox) if sandbox else None)
        tie_to(agent)
        if folder:
            os.chdir(folder)
        os.execvpe(command[0], command, environment)  # noqa: S606 -- the job's own command
    except FileNotFoundError:
        sys.stderr.write(f"gangline: command not found: {command[0]}\n")
        code = 127
    except OSError as error:
        sys.stderr.write(f"gangline: cannot run {command[0]}: {error.strerror}\n")
        code = 126
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
