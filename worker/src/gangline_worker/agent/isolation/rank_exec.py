"""Becomes the rank: run as a script, with what it gives up and the command (`tied_command`).

It stands between fork and exec because the agent has threads, after whose fork no Python code is
safe in the child. Imports the standard library alone.
"""

import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_CLONE_NEWNS, _CLONE_NEWIPC = 0x0002_0000, 0x0800_0000
HANDED_DOWN = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
"""Signals that the agent may ignore by nohup or a shell; its ranks do not ignore them."""


def tied_command(
    *command: str, orders: tuple[str, ...] = (), sandbox: int | None = None
) -> list[str]:
    """The command line of a process that is tied to this one, confined, and then runs `command`."""
    given = [str(os.getpid()), ";".join(orders), "" if sandbox is None else str(sandbox)]
    return [sys.executable, "-I", "-S", __file__, *given, *command]


def confine(orders: tuple[str, ...], sandbox: int | None) -> None:
    """Give up the rights that ranks must not have, for ever. Raises OSError.

    `sandbox` is a pidfd of a process whose mount and ipc namespaces are joined. The orders are
    `group FILE` to join a control group, `limit NAME N` for a resource limit, `user UID`, and
    `lock`: no new privileges by execution.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    folder = os.getcwd()  # noqa: PTH109 -- pathlib costs as much as the rest
    if sandbox is not None:
        if libc.setns(sandbox, _CLONE_NEWNS | _CLONE_NEWIPC) != 0:
            raise OSError(ctypes.get_errno(), "cannot enter the gang's namespaces")
        os.close(sandbox)
    for order in orders:
        name, *values = order.split(" ")
        if name == "group":
            with open(" ".join(values), "w", encoding="ascii") as file:  # noqa: PTH123
                file.write("0")
        elif name == "limit":
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
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:  # noqa: PTH123
            file.write("500")
    except OSError:
        pass


def main() -> None:
    """Run the command, tied to the agent; 127 when it does not exist, else 126."""
    agent, orders, sandbox = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    command = sys.argv[4:]
    for number in (*HANDED_DOWN, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        confine(tuple(filter(None, orders.split(";"))), int(sandbox) if sandbox else None)
        tie_to(agent)
        os.execvp(command[0], command)  # noqa: S606 -- the job's own command
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
