"""Mounts an image's layers for a container engine and becomes it: run as a script.

`AT TMP_BYTES SHM_BYTES OPTIONS WORKDIR LINKS FOLDER LAYERS COMMAND...`. Each link is two lines:
what it says, and its place. With SHM_BYTES there are `AT`/shm, in memory, and `AT`/tmp too, for
engines that give a container no such folders of a chosen size. The mounts are of this process and
those that it starts. So they are gone with the container, and the engine stores nothing.
"""

import ctypes
import os
import sys

_CLONE_NEWNS = 0x0002_0000
_FOLDERS = ("/tmp", "/var/tmp", "/etc", "/dev", "/proc", "/sys")  # noqa: S108 -- the container's
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18


def main() -> None:
    """Mount them and run the command, which finds the root at `AT`/root."""
    sys.path.append(os.path.dirname(__file__))  # noqa: PTH120
    import image_root  # type: ignore[import-not-found]

    at, tmp_bytes, shm_bytes, options, workdir, links, folder, layers, *command = sys.argv[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    os.umask(0o022)
    try:
        if libc.unshare(_CLONE_NEWNS) != 0 or libc.mount(
            b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None
        ):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), "unshare")
        root = image_root.mount_layers(folder, layers.split(":"), at, int(tmp_bytes), options)
        if shm_bytes:
            image_root.mount_memory(f"{at}/shm", int(shm_bytes))
            image_root.mount_memory(f"{at}/tmp", int(tmp_bytes))  # noqa: S108
        _complete(root, workdir, links.split("\n") if links else [])
        os.chdir("/")
        os.execvp(command[0], command)  # noqa: S606 -- the engine that the operator has chosen
    except OSError as error:
        sys.stderr.write(f"Error: {error.filename}: {error.strerror}\n")
        sys.exit(125)


def _complete(root: str, workdir: str, links: list[str]) -> None:
    """Make folders and links from within the image, whose own links lead to nothing outside."""
    pid = os.fork()
    if pid == 0:
        try:
            os.chroot(root)
            os.chdir("/")
            for folder in filter(None, (*_FOLDERS, workdir)):
                os.makedirs(folder, mode=0o755, exist_ok=True)  # noqa: PTH103
            for folder in ("/tmp", "/var/tmp"):  # noqa: S108 -- runc gives /tmp the mode of this one
                os.chmod(folder, 0o1777)  # noqa: PTH101, S103
            for says, place in zip(links[::2], links[1::2], strict=True):
                os.makedirs(os.path.dirname(place), mode=0o755, exist_ok=True)  # noqa: PTH103, PTH120
                if os.path.islink(place):  # noqa: PTH114
                    os.unlink(place)  # noqa: PTH108
                if not os.path.exists(place):  # noqa: PTH110
                    os.symlink(says, place)  # noqa: PTH211
        except OSError:  # the engine will say which is missing
            os._exit(1)
        os._exit(0)
    os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
