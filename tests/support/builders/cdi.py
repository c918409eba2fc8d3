"""A machine with two GPUs, below a folder, and its CDI file as `nvidia-ctk cdi generate` has it.

Recorded in the form of toolkit 1.17 (`cdiVersion: 0.5.0`), shortened to a few libraries. Device
nodes are those of the machine that runs the test.
"""

from __future__ import annotations

from pathlib import Path

UUIDS = ("GPU-955ef018-3bd9-5f27-80b3-fa20ee8d19c5", "GPU-1ac8f0d1-7e5b-4a35-9a1c-0f5d2a9e7b40")
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
VERSION = "570.133.07"
_MOUNT = """\
  - containerPath: {path}
    hostPath: {root}{path}
    options:
    - ro
    - nosuid
    - nodev
    - bind
"""
_DEVICE = """\
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia{number}
      hostPath: {host}
  name: "{name}"
"""
_COMMON = """\
containerEdits:
  deviceNodes:
  - path: /dev/nvidia-uvm
    hostPath: /dev/zero
  - path: /dev/nvidiactl
    hostPath: /dev/full
  env:
  - NVIDIA_CTK_LIBCUDA_DIR={libraries}
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - args:
    - nvidia-cdi-hook
    - create-symlinks
    - --link
    - libcuda.so.1::{libraries}/libcuda.so
    hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
  - args:
    - nvidia-cdi-hook
    - enable-cuda-compat
    - --host-driver-version={version}
    hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
  - args:
    - nvidia-cdi-hook
    - update-ldcache
    - --folder
    - {libraries}
    hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
  mounts:
"""
GPUS = ("/dev/null", "/dev/random")
"""Stand for /dev/nvidia0 and /dev/nvidia1."""


def gpu_machine(root: Path) -> None:
    """The files of its driver below `root`, with the links that ldconfig makes."""
    folder = root / LIBRARIES[1:]
    folder.mkdir(parents=True)
    for name in ("libcuda", "libnvidia-ml"):
        (folder / f"{name}.so.{VERSION}").write_text(f"{name} of the node")
        (folder / f"{name}.so.1").symlink_to(f"{name}.so.{VERSION}")
        (folder / f"{name}.so").symlink_to(f"{name}.so.1")
    (root / "usr/bin").mkdir()
    (root / "usr/bin/nvidia-smi").write_text("#!/bin/sh\necho two GPUs\n")
    (root / "usr/bin/nvidia-smi").chmod(0o755)


def cdi_text(root: Path) -> str:
    """The file of this machine, in YAML."""
    devices = ""
    for number, host in enumerate(GPUS):
        for name in (str(number), UUIDS[number]):
            devices += _DEVICE.format(number=number, host=host, name=name)
    paths = [f"{LIBRARIES}/{name}.so.{VERSION}" for name in ("libcuda", "libnvidia-ml")]
    mounts = "".join(_MOUNT.format(path=p, root=root) for p in (*paths, "/usr/bin/nvidia-smi"))
    common = _COMMON.format(libraries=LIBRARIES, version=VERSION)
    return f"---\ncdiVersion: 0.5.0\n{common}{mounts}devices:\n{devices}kind: nvidia.com/gpu\n"
