"""`make screenshots`: a picture of each page of the console, light and dark, for the guide.

It starts a platform of its own, with jobs that run, wait and failed.
"""

from __future__ import annotations

import io
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page

from gangline.sdk import connect
from support.fixtures.platform import start_platform
from support.harnesses.console_page import CHROMIUM, NO_CHROMIUM, chromium, console_page
from support.harnesses.console_tour import STUDY as SMALL_STUDY
from support.harnesses.console_tour import seed, stops
from support.harnesses.up_process import wait_until

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
SETTLE_MS = 2500
COLOURS = 128


def save(page: Page, path: Path) -> None:
    """The picture, with few colours: a third of the bytes."""
    picture = Image.open(io.BytesIO(page.screenshot()))
    picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    """Take them all."""
    if CHROMIUM is None:
        sys.exit(NO_CHROMIUM)
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, start_platform(Path(folder))[0] as platform:
        client = platform.start()
        url, token = client.url, client.token
        with connect(url, token) as gateway:
            study = gateway.submit_study(STUDY).study_id
            wait_until("the study", lambda: gateway.study(study).state == "ended", ENDS_S)
            places = stops(replace(seed(gateway), study=study))
        with chromium() as browser, console_page(browser, url, token) as console:
            console.page.set_viewport_size(SIZE)  # type: ignore[arg-type]
            for name, path in places.items():
                for theme in ("light", "dark"):
                    console.page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
                    console.go(path)
                    console.page.wait_for_timeout(SETTLE_MS)
                    save(console.page, FOLDER / f"{name}-{theme}.png")
                print(name, flush=True)


if __name__ == "__main__":
    main()
