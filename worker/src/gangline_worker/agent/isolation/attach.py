"""Shows paths of the node in a sandbox that has an image and was made before: run as a script.

`SANDBOX PATH...`: a pidfd of its first process, and the paths. They are opened on the node first.
The names are then followed in the sandbox, where its team's processes may have changed them: so
they lead to places of this sandbox only. Imports as little as `sandbox_init`.
"""

import ctypes
import os
import sys

_CLONE_NEWNS = 0x0002_0000


def main() -> None:
    """Attach all, or say what was refused."""
    sys.path.append(os.path.dirname(__file__))  # noqa: PTH120
    import image_root  # type: ignore[import-not-found]

    sandbox, *paths = sys.argv[1:]
    os.umask(0o022)
    try:
        shown = [image_root.Shown(path) for path in paths]
        if ctypes.CDLL(None, use_errno=True).setns(int(sandbox), _CLONE_NEWNS) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), "setns")
        for item in shown:
            item.attach()
    except OSError as error:
        sys.stdout.write(f"{error.filename}: {error.strerror}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
