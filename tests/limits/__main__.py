"""`python -m limits [ARGUMENTS OF PYTEST]`: the twelve ways out of a node, at level `limits`.

Control groups of version 2 with a memory controller are the machine's, and a container or a
machine that has version 1 has none to give. So the tests run in a kernel that is a program of this
machine (User-Mode Linux, Debian's package user-mode-linux) and whose files are this machine's;
what they write to temporary folders goes with it. It needs root, and takes some minutes: that
kernel has one core, and its system calls are slow.
"""

from __future__ import annotations

import base64
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

KERNEL = "linux.uml"
MEMORY = "8G"
LIMIT_S = 1800
ENDED = "GANGLINE_ENDED="
TESTS = [f"tests/integration/test_isolation_{name}.py" for name in ("access", "processes", "gangs")]


def main(arguments: list[str]) -> int:
    """Boot, run pytest there, show what it says; its exit code."""
    kernel = shutil.which(KERNEL)
    if kernel is None or os.geteuid() != 0:
        why = "it must be run by root" if kernel else f"there is no {KERNEL} on PATH"
        print(f"error: {why}; on Debian: apt-get install user-mode-linux", file=sys.stderr)
        return 2
    root = Path(__file__).resolve().parents[2]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(Path.home()),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(root / "tests"),
        "GANGLINE_TEST_GROUPS": "/sys/fs/cgroup",
        "GANGLINE_TEST_ISOLATION": "limits",
    }
    color = f"--color={'yes' if sys.stdout.isatty() else 'no'}"  # there it is a terminal always
    options = ["-p", "no:cacheprovider", "-rs", color]
    pytest = [sys.executable, "-m", "pytest", *options, *TESTS, *arguments]
    variables = [f"{name}={value}" for name, value in environment.items()]
    run = f"cd {shlex.quote(str(root))} && exec {shlex.join(['env', '-i', *variables, *pytest])}"
    command = [
        *(kernel, f"mem={MEMORY}", "rootfstype=hostfs", "rootflags=/", "rw", "quiet", "loglevel=1"),
        *(f"init={Path(__file__).with_name('init.sh')}", "con=null", "con0=fd:0,fd:1"),
        *(f"GANGLINE_ROOT={encoded(str(root))}", f"GANGLINE_RUN={encoded(run)}"),
    ]
    console = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace"
    )
    code = 1  # it ended before its tests did
    try:
        assert console.stdout is not None
        for line in console.stdout:
            if line.startswith(ENDED):
                code = int(line.removeprefix(ENDED))
            else:
                print(line, end="", flush=True)
        console.wait(LIMIT_S)
    finally:
        console.kill()
    return code


def encoded(text: str) -> str:
    """As one word of a kernel's command line."""
    return base64.b64encode(text.encode()).decode()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
