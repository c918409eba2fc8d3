"""`make screenshots`: a picture of each page of the console, light and dark, for the guide.

It starts a platform of its own, with jobs that run, wait and failed, a study, a pipeline, and a
model with versions. `--narrow FOLDER` takes pictures of 390 pixels into a folder, too.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

from mlflow import MlflowClient
from PIL import Image
from playwright.sync_api import Page, TimeoutError  # noqa: A004 - Playwright's

from gangline.job_file import pack
from gangline.local.platform import Platform
from gangline.sdk import Gangline, connect
from support.fixtures.platform import start_platform
from support.harnesses.console_page import (
    CHROMIUM,
    NO_CHROMIUM,
    ConsolePage,
    chromium,
    console_page,
)
from support.harnesses.console_tour import MODEL_GATE, seed, stops
from support.harnesses.console_tour import STUDY as SMALL_STUDY
from support.harnesses.log_watch import PACED
from support.waiting import wait_until

PROGRAM = """import math, gangline_worker as w
for step in range(1, 21):
    w.report({'eval_loss': 1.6 / math.sqrt(step) + 0.3 * abs(math.log10(${{ lr }}) + 2)}, step)
w.flush()
"""
STUDY = {
    **SMALL_STUDY,
    "limits": {"trials": 6, "parallel": 2},
    "job": {
        "resources": {"gpus": 1, "memory_per_gpu_gb": 1},
        "command": ["python", "-c", PROGRAM],
    },
}
ENDS_S = 600.0
FOLDER = Path(__file__).parents[1] / "docs" / "guides" / "images" / "console"
SIZE = {"width": 1280, "height": 800}
NARROW = {"width": 390, "height": 844}
THEMES = ("light", "dark")
GATE = MODEL_GATE.model_copy(update={"first": "accept", "checkpoint": "any"})
RIGHT = {1: 70, 2: 88, 3: 75}
"""Items of 100 that each version of the model answers right: the third is refused."""
ALERTS = "rules:\n  queue-wait: {above_s: 5, priority_below: 100}\n"
"""So that the job that waits raises one."""
SETTLE_MS = 1500
DRAWN_MS = 30_000
DRAWN = """() => !document.querySelector('main [aria-busy=true]')
  && [...document.querySelectorAll('main .plot')].every((plot) =>
    plot.getBoundingClientRect().top > innerHeight || !plot.checkVisibility()
    || plot.querySelector('canvas, svg') || plot.textContent.trim())"""
"""Whether no chart in sight is empty."""
COLOURS, EXACT = 192, 12


def started(folder: Path) -> Platform:
    """A platform with rules of its own, not started yet."""
    alerts = folder / "alerts.yaml"
    alerts.write_text(ALERTS, encoding="utf-8")
    return start_platform(folder, alerts_file=alerts)[0]


def save(page: Page, path: Path) -> None:
    """The picture, with few colours: a third of the bytes. Those of large areas are exact."""
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    found = picture.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    palette = found.getpalette() or []
    pixels = list(picture.getdata())
    entries = dict(zip(pixels, found.getdata(), strict=True))
    for colour, _ in reversed(Counter(pixels).most_common(EXACT)):
        palette[3 * entries[colour] : 3 * entries[colour] + 3] = colour
    found.putpalette(palette)
    found.save(path, optimize=True)


def versions(gateway: Gangline, url: str, token: str) -> None:
    """Versions of the gated model with scores and an approval; the second is its champion."""
    os.environ["MLFLOW_TRACKING_TOKEN"] = token
    uri, model = f"{url}/mlflow/teams/{GATE.team}", GATE.model
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    client.create_registered_model(model)
    run = client.create_run(client.create_experiment(model)).info.run_id
    gateway.set_gate(GATE)
    for number, right in RIGHT.items():
        client.create_model_version(model, f"runs:/{run}/m{number}", run_id=run)
        gateway.register(model, version=number, team=GATE.team)
        scores = {f"q{item}": float(item < right) for item in range(100)}
        gateway.report_scores(model, number, "qa", scores, team=GATE.team)
        if number == len(RIGHT) - 1:
            gateway.approve_version(model, number, comment="answers read", team=GATE.team)
        gateway.promote_version(model, number, alias=GATE.aliases[0], team=GATE.team)


def take(console: ConsolePage, places: dict[str, str], size: dict[str, int], folder: Path) -> None:
    """A picture of each place in each theme."""
    page = console.page
    folder.mkdir(parents=True, exist_ok=True)
    page.set_viewport_size(size)  # type: ignore[arg-type]
    for name, path in places.items():
        for theme in THEMES:
            page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
            console.go(path)
            try:
                page.wait_for_function(DRAWN, timeout=DRAWN_MS)
            except TimeoutError:
                print(f"{name}: a chart stays empty", flush=True)
            page.wait_for_timeout(SETTLE_MS)
            save(page, folder / f"{name}-{theme}.png")
        print(name, flush=True)


def main() -> None:
    """Take them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--narrow", type=Path, help="a folder for pictures of 390 pixels, too")
    narrow: Path | None = parser.parse_args().narrow
    if CHROMIUM is None:
        sys.exit(NO_CHROMIUM)
    with tempfile.TemporaryDirectory() as folder, started(Path(folder)) as platform:
        client = platform.start()
        url, token = client.url, client.token
        with connect(url, token) as gateway:
            study = gateway.submit_study(STUDY).study_id
            wait_until("the study", lambda: gateway.study(study).state == "ended", ENDS_S)
            program = Path(folder, "program")
            program.mkdir()
            shutil.copy(PACED[1], program / "train.py")
            bundle = pack(program)
            gateway.upload(bundle, "default")
            fields = {"command": ["python", "train.py"], "code_bundle": bundle.digest}
            seeded = seed(gateway, fields)
            places = stops(replace(seeded, study=study))
            versions(gateway, url, token)
        with chromium() as browser, console_page(browser, url, token) as console:
            take(console, places, SIZE, FOLDER)
            if narrow is not None:
                take(console, places, NARROW, narrow)


if __name__ == "__main__":
    main()
