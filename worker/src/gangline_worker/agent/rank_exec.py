"""Becomes the rank: run as a script by the launcher, with the agent's pid and the command.

It stands between fork and exec because the agent has threads, after whose fork no Python code is
safe in the child. Imports the standard library alone.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Die with the agent, then run the command; 127 when there is no such command, else 126."""
    agent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != agent:  # it died before the line above
        os.kill(os.getpid(), signal.SIGKILL)
    # A rank, not the agent, is what the kernel should choose when memory runs out.
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:  # noqa: PTH123
            file.write("500")
    except OSError:
        pass
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
