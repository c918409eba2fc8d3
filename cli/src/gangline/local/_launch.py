"""Run as a script: bind this process's life to its parent's, then become the real program.

A program of its own and no `preexec_fn`, because Python code between fork and exec may deadlock
in a process that has threads. It is started without site-packages and costs about 15 ms.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
CANNOT_RUN = 127


def main() -> None:
    """Arguments: the parent's pid, the niceness to add, then the program and its arguments."""
    parent, niceness = int(sys.argv[1]), int(sys.argv[2])
    argv = sys.argv[3:]
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.stderr.write(f"prctl: {os.strerror(ctypes.get_errno())}\n")
        sys.exit(CANNOT_RUN)
    # The parent may have died before the call above; then no signal would ever come.
    if os.getppid() != parent:
        sys.exit(CANNOT_RUN)
    os.nice(niceness)
    try:
        os.execvp(argv[0], argv)  # noqa: S606  (a program and its arguments, no shell)
    except OSError as error:
        sys.stderr.write(f"cannot run {argv[0]}: {error.strerror}\n")
        sys.exit(CANNOT_RUN)


if __name__ == "__main__":
    main()
