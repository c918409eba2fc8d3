"""The first process of a sandbox: the namespaces that the ranks of one gang on this node share.

Run as a script (`arguments`), as the first process of a new pid namespace. It makes its own mount
and ipc namespaces, and puts empty folders over hidden paths. It shows the given paths again where
they were, links as links. With layers of an image it makes these the root instead (`image_root`).
Then it says "ready" and waits: the system collects ended processes. All processes in it end with
it, and it ends with the agent.

A gang waits for it, so it imports little: `json` or `signal` would cost as much as the rest.
"""

import ctypes
import os
import sys

_PR_SET_PDEATHSIG, _SIGKILL, _SIGCHLD, _SIG_IGN = 1, 9, 17, 1
_CLONE_NEWNS, _CLONE_NEWIPC = 0x0002_0000, 0x0800_0000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 1 << 18
SHARED = ("/tmp", "/var/tmp")  # noqa: S108 -- a sandbox has its own
_LIBC = ctypes.CDLL(None, use_errno=True)


def arguments(
    hide: list[str],
    show: list[str],
    shm_bytes: int,
    tmp_bytes: int,
    image: tuple[str, list[str], str] | None = None,
    given: list[str] | None = None,
) -> list[str]:
    """The script's: sizes of the sandbox's own memory files, then -HIDDEN and +SHOWN paths.

    `image`: the folder of layers, their names there, the lowest first, and its WORKDIR or "".
    `given`: orders of `image_root.Given`.
    """
    paths = [*(f"-{path}" for path in hide), *(f"+{path}" for path in show)]
    if image is not None:
        folder, layers, workdir = image
        paths += [f"/{folder}", *(f"={name}" for name in layers), f"@{workdir}"]
    if given is not None:
        paths += ["!", *(f"!{order}" for order in given)]
    return [str(shm_bytes), str(tmp_bytes), *paths]


def _given(paths: list[str], kind: str) -> list[str]:
    return [path[1:] for path in paths if path[0] == kind]


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    found = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    _check(_LIBC.mount(*found, ctypes.c_ulong(flags), os.fsencode(options)), target)


def _empty(folder: str, options: str) -> None:
    if os.path.isdir(folder):  # noqa: PTH112 -- pathlib costs as much as the rest
        _mount("tmpfs", folder, "tmpfs", _MS_NOSUID | _MS_NODEV, options)


def _kept(path: str) -> int | str:
    """A handle of what lies there, or where the link that lies there leads."""
    if os.path.islink(path):  # noqa: PTH114
        return os.readlink(path)  # noqa: PTH115
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def _show(path: str, found: int | str) -> None:
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)  # noqa: PTH103, PTH120
    if isinstance(found, str):
        os.symlink(found, path)  # noqa: PTH211
        return
    here = f"/proc/self/fd/{found}"
    if os.path.isdir(here):  # noqa: PTH112
        os.makedirs(path, mode=0o755, exist_ok=True)  # noqa: PTH103
    else:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    _mount(here, path, None, _MS_BIND | _MS_REC)
    os.close(found)


def mount_all(paths: list[str], shm_bytes: int, tmp_bytes: int) -> None:
    """Make the mounts of this sandbox. Raises OSError when the system refuses one."""
    _check(_LIBC.unshare(_CLONE_NEWNS | _CLONE_NEWIPC), "unshare")
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    hide, show, layers = _given(paths, "-"), _given(paths, "+"), _given(paths, "=")
    if layers:
        sys.path.append(os.path.dirname(__file__))  # noqa: PTH120
        import image_root  # type: ignore[import-not-found]

        [folder], [workdir] = _given(paths, "/"), _given(paths, "@")
        marked = _given(paths, "!")
        given = [order for order in marked if order] if marked else None
        image_root.change_root(folder, layers, show, shm_bytes, tmp_bytes, workdir, given)
        return
    kept = {path: _kept(path) for path in show}
    for folder in SHARED:
        _empty(folder, f"mode=1777,size={tmp_bytes}")
    _empty("/dev/shm", f"mode=1777,size={shm_bytes}")  # noqa: S108
    for folder in sorted(hide):
        _empty(folder, "mode=0755,size=1m")
    for path, found in kept.items():
        _show(path, found)
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)


def main() -> None:
    """Mount the folders of the sandbox and keep it until the agent goes."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    _LIBC.signal(_SIGCHLD, ctypes.c_void_p(_SIG_IGN))
    os.umask(0o022)
    shm_bytes, tmp_bytes, *paths = sys.argv[1:]
    try:
        mount_all(paths, int(shm_bytes), int(tmp_bytes))
    except OSError as error:
        sys.stdout.write(f"{error.filename}: {error.strerror}\n")
        sys.exit(1)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        _LIBC.pause()


if __name__ == "__main__":
    main()
