"""The steps of pipeline.yaml: each reads GANGLINE_IN and leaves its outputs in GANGLINE_OUT."""

import json
import os
import random
import sys
from pathlib import Path

SEED = 17
POINTS = 200


def prepare(noise: float) -> None:
    """Points of a cubic with noise."""
    draw = random.Random(SEED)
    xs = [draw.uniform(-1, 1) for _ in range(POINTS)]
    points = [(x, x**3 - x + draw.gauss(0, noise)) for x in xs]
    (out() / "numbers" / "points.json").write_text(json.dumps(points))


def fit(degree: int) -> None:
    """A polynomial by gradient descent, and its error as a score."""
    points = json.loads((given() / "numbers" / "points.json").read_text())
    weights = [0.0] * (degree + 1)
    for _ in range(2000):
        slopes = [0.0] * len(weights)
        for x, y in points:
            wrong = sum(w * x**n for n, w in enumerate(weights)) - y
            for n in range(len(weights)):
                slopes[n] += 2 * wrong * x**n / len(points)
        weights = [w - 0.3 * slope for w, slope in zip(weights, slopes, strict=True)]
    errors = [(sum(w * x**n for n, w in enumerate(weights)) - y) ** 2 for x, y in points]
    (out() / "model" / "weights.json").write_text(json.dumps(weights))
    (out() / "error").write_text(str(sum(errors) / len(errors)))


def report() -> None:
    """The better of the fits: inputs of a fan-out are numbered folders."""
    errors = {
        folder.name: float((folder / "value").read_text())
        for folder in (given() / "errors").iterdir()
    }
    best = min(errors, key=errors.__getitem__)
    weights = json.loads((given() / "models" / best / "weights.json").read_text())
    found = {"best": int(best), "errors": errors, "weights": weights}
    (out() / "report" / "report.json").write_text(json.dumps(found, indent=2))


def given() -> Path:
    """The folder of the inputs."""
    return Path(os.environ["GANGLINE_IN"])


def out() -> Path:
    """The folder for the outputs."""
    return Path(os.environ["GANGLINE_OUT"])


if __name__ == "__main__":
    step, *values = sys.argv[1:]
    if step == "prepare":
        prepare(float(values[0]))
    elif step == "fit":
        fit(int(values[0]))
    else:
        report()
