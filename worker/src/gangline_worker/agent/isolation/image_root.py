"""The root of a sandbox whose gang runs in an image: its layers, and a few things of the node.

Run by `sandbox_init`, as the first process of the sandbox; it imports as little. All of the node
that is shown is opened before, and attached after this process has turned its back on the node's
files (`pivot_root`): so no link in an image leads to them.
"""

import contextlib
import ctypes
import glob
import os
import stat

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 1, 2, 4, 8, 32
_MS_BIND, _MNT_DETACH = 0x1000, 2
_OPEN_TREE, _MOVE_MOUNT = 428, 429  # the same numbers on all processors
_CLONE, _CLOEXEC, _RECURSIVE = 1, 0o2000000, 0x8000
_FROM_EMPTY_PATH = 4
_AT_FDCWD = -100
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_ACCELERATORS = (
    "/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/infiniband/*", "/dev/dri/*", "/dev/kfd",
    "/dev/gdrdrv",
)  # fmt: skip
_WITHOUT_CDI = ("/dev/nvidia", "/dev/dri/")
_DRIVER_FOLDERS = ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64")
_DRIVERS = (
    "cuda", "cudadebugger", "nvidia-ml", "nvidia-cfg", "nvidia-ptxjitcompiler", "nvidia-nvvm",
    "nvidia-gpucomp", "nvidia-allocator", "nvidia-opencl",
)  # fmt: skip
NVIDIA = "/usr/local/nvidia"
"""Where NVIDIA's images look for the driver's programs (bin) and libraries (lib64)."""
_OF_NETWORK = ("/etc/resolv.conf", "/etc/hosts")
_LIBC = ctypes.CDLL(None, use_errno=True)


class Shown:
    """Something of the node, by a handle that stays valid when the node's root is gone."""

    def __init__(self, path: str, *, deep: bool = True, at: str | None = None) -> None:
        """`at`: shown there instead, also if it is a link."""
        self.path = at or path
        is_link = at is None and os.path.islink(path)  # noqa: PTH114
        self.link = os.readlink(path) if is_link else None  # noqa: PTH115
        self.is_folder = self.link is None and os.path.isdir(path)  # noqa: PTH112
        self.handle = -1 if self.link is not None else _open_tree(path, deep=deep)

    def attach(self, *, read_only: bool = False, programs: bool = False) -> None:
        """Show it at its own path; `programs`: it may have some. Raises OSError."""
        os.makedirs(os.path.dirname(self.path), mode=0o755, exist_ok=True)  # noqa: PTH103, PTH120
        if self.link is not None:
            os.symlink(self.link, self.path)  # noqa: PTH211
            return
        if self.is_folder:
            os.makedirs(self.path, mode=0o755, exist_ok=True)  # noqa: PTH103
        else:
            _new_file(self.path)
        target = os.fsencode(self.path)
        moved = _LIBC.syscall(
            _MOVE_MOUNT, self.handle, b"", _AT_FDCWD, target, ctypes.c_uint(_FROM_EMPTY_PATH)
        )
        _check(moved, self.path)
        os.close(self.handle)
        if read_only:
            flags = _MS_BIND | _MS_REMOUNT | _MS_RDONLY | _MS_NOSUID | _MS_NODEV
            _mount("none", self.path, None, flags if programs else flags | _MS_NOEXEC)


class Given:
    """The gang's devices and their files by CDI, in place of all GPUs and the driver's files.

    `orders`: lines of two, the first one with its kind before it: D, R, W for a device, a file to
    read and one to write, as `SOURCE` and `TARGET`; L for a link, as what it says and its place.
    """

    def __init__(self, orders: list[str]) -> None:
        parts = [(each[0], *each[1:].split("\n")) for each in orders]
        self._shown = [
            (kind, Shown(os.path.realpath(source), at=target))
            for kind, source, target in parts
            if kind != "L"
        ]
        self._links = [(says, place) for kind, says, place in parts if kind == "L"]

    def attach(self) -> None:
        """Show all, and make the links, unless a file has their place. Raises OSError."""
        for kind, item in self._shown:
            with contextlib.suppress(FileNotFoundError):
                if os.path.islink(item.path):  # noqa: PTH114
                    os.unlink(item.path)  # noqa: PTH108
            item.attach(read_only=kind == "R", programs=True)
        for says, place in self._links:
            os.makedirs(os.path.dirname(place), mode=0o755, exist_ok=True)  # noqa: PTH103, PTH120
            if os.path.islink(place):  # noqa: PTH114
                os.unlink(place)  # noqa: PTH108
            with contextlib.suppress(FileExistsError):
                os.symlink(says, place)  # noqa: PTH211


def change_root(
    folder: str,
    layers: list[str],
    show: list[str],
    shm_bytes: int,
    tmp_bytes: int,
    workdir: str,
    given: list[str] | None = None,
) -> None:
    """Make the layers (the lowest first) below `folder` the root of this mount namespace.

    Files that ranks write there are in memory, up to `tmp_bytes`. `given`: orders of `Given`; None:
    all GPUs and the driver's files. Raises OSError.
    """
    shown = [Shown(path) for path in show]
    machine = [Shown(path) for path in _OF_NETWORK if os.path.isfile(path)]  # noqa: PTH113
    system = Shown("/sys", deep=False)
    basic = [path for name in _DEVICES if _is_device(path := f"/dev/{name}")]
    of_node = accelerators(without_gpus=given is not None)
    devices = [Shown(path) for path in (*basic, *of_node)]
    found = driver_files("/") if given is None else {}
    drivers = [Shown(path, at=at) for at, path in found.items()]
    of_cdi = Given(given or [])
    _enter(folder, layers, tmp_bytes)
    _mount_own(shm_bytes, tmp_bytes)
    for device in devices:
        device.attach()
    system.attach(read_only=True)
    for file in machine:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(file.path)  # noqa: PTH108 -- in many images a link
        file.attach(read_only=True)
    for driver in drivers:
        driver.attach()
    of_cdi.attach()
    for item in shown:
        item.attach()
    if workdir:
        os.makedirs(workdir, mode=0o755, exist_ok=True)  # noqa: PTH103


def accelerators(*, without_gpus: bool) -> list[str]:
    """The devices of the node's GPUs, if they are wanted, and of its InfiniBand."""
    found = [path for pattern in _ACCELERATORS for path in glob.glob(pattern)]  # noqa: PTH207
    if without_gpus:
        found = [path for path in found if not path.startswith(_WITHOUT_CDI)]
    return [path for path in found if _is_device(path)]


def driver_files(node: str) -> dict[str, str]:
    """The NVIDIA driver's files below the root of a node, by where an image has them.

    An image has CUDA's libraries, and must have those of the node's driver.
    """
    found: dict[str, str] = {}
    if not os.path.exists(f"{node}dev/nvidiactl"):  # noqa: PTH110
        return found
    for name in _DRIVERS:
        for folder in _DRIVER_FOLDERS:
            for path in glob.glob(f"{node.rstrip('/')}{folder}/lib{name}.so*"):  # noqa: PTH207
                found.setdefault(f"{NVIDIA}/lib64/{os.path.basename(path)}", path)  # noqa: PTH119
    program = f"{node}usr/bin/nvidia-smi"
    if os.path.exists(program):  # noqa: PTH110
        found[f"{NVIDIA}/bin/nvidia-smi"] = program
    return found


def _is_device(path: str) -> bool:
    return os.path.exists(path) and stat.S_ISCHR(os.stat(path).st_mode)  # noqa: PTH110, PTH116


def mount_layers(folder: str, layers: list[str], at: str, tmp_bytes: int, more: str = "") -> str:
    """Mount layers below `folder`, the lowest first, in a folder below `at`, which it returns.

    Files that are written there are in memory, up to `tmp_bytes`. `more`: options of the overlay.
    Changes the working directory. Raises OSError.
    """
    os.chdir(folder)  # so that the options of the mount have short names
    _mount("tmpfs", at, "tmpfs", _MS_NOSUID | _MS_NODEV, f"mode=0755,size={tmp_bytes}")
    for name in ("upper", "work", "root"):
        os.mkdir(f"{at}/{name}", 0o755)  # noqa: PTH102
    lower = ":".join(reversed(layers))
    options = f"{more}lowerdir={lower},upperdir={at}/upper,workdir={at}/work"
    _mount("overlay", f"{at}/root", "overlay", _MS_NOSUID | _MS_NODEV, options)
    return f"{at}/root"


def mount_memory(at: str, most_bytes: int) -> None:
    """A new folder in memory, in which all users may write. Raises OSError."""
    os.makedirs(at, mode=0o755, exist_ok=True)  # noqa: PTH103
    _mount("tmpfs", at, "tmpfs", _MS_NOSUID | _MS_NODEV, f"mode=1777,size={most_bytes}")


def _enter(folder: str, layers: list[str], tmp_bytes: int) -> None:
    os.chdir(mount_layers(folder, layers, "/tmp", tmp_bytes))  # noqa: S108
    _check(_LIBC.pivot_root(b".", b"."), "pivot_root")
    _check(_LIBC.umount2(b".", _MNT_DETACH), "umount")
    os.chdir("/")


def _mount_own(shm_bytes: int, tmp_bytes: int) -> None:
    """The mounts that every Linux program expects."""
    for name in ("/proc", "/sys", "/dev", "/tmp", "/var/tmp", "/etc"):  # noqa: S108
        os.makedirs(name, mode=0o755, exist_ok=True)  # noqa: PTH103
    # Before /proc is there: by a link of the image through it, this would be a file of the node.
    os.chmod("/var/tmp", 0o1777)  # noqa: PTH101, S103, S108
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    _mount("tmpfs", "/dev", "tmpfs", _MS_NOSUID | _MS_NOEXEC, "mode=0755,size=1m")
    os.mkdir("/dev/pts", 0o755)  # noqa: PTH102
    mount_memory("/dev/shm", shm_bytes)  # noqa: S108
    with contextlib.suppress(OSError):  # without it programs have no terminals of their own
        options = "newinstance,ptmxmode=0666,mode=0620"
        _mount("devpts", "/dev/pts", "devpts", _MS_NOSUID | _MS_NOEXEC, options)
        os.symlink("pts/ptmx", "/dev/ptmx")  # noqa: PTH211
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(f"/proc/self/{target}", f"/dev/{name}")  # noqa: PTH211
    mount_memory("/tmp", tmp_bytes)  # noqa: S108


def _new_file(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))


def _open_tree(path: str, *, deep: bool) -> int:
    flags = _CLONE | _CLOEXEC | (_RECURSIVE if deep else 0)
    handle = _LIBC.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(path), ctypes.c_uint(flags))
    if handle < 0:
        _check(-1, path)
    return int(handle)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    found = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    _check(_LIBC.mount(*found, ctypes.c_ulong(flags), os.fsencode(options)), target)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
