"""Becomes the rank: run as a script, with the agent's pid and the command (`tied_command`).

It stands between fork and exec because the agent has threads, after whose fork no Python code is
safe in the child. Imports the standard library alone.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def tied_command(*command: str) -> list[str]:
    """The command line of a process that is tied to this one and then runs `command`."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def tie_to(agent: int) -> None:
    """Make this process die with its parent, the agent, and before it when memory runs out."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != agent:  # it died before the line above
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:  # noqa: PTH123
            file.write("500")
    except OSError:
        pass


def main() -> None:
    """Run the command, tied to the agent; 127 when there is no such command, else 126."""
    agent, command = int(sys.argv[1]), sys.argv[2:]
    tie_to(agent)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
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
