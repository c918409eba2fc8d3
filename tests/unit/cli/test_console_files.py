"""The console's files come out of pinned webjars, whole or not at all."""

from __future__ import annotations

import zipfile
from importlib import resources
from pathlib import Path

import pytest

from gangline.local import console_files
from gangline.local.artifacts import Artifact, parse_pins


def test_each_webjar_of_the_pins_has_its_files_named() -> None:
    text = resources.files("gangline.local").joinpath("console_jars.txt").read_text("utf-8")
    names = [artifact.coordinate.split(":")[1] for artifact in parse_pins(text)]
    assert sorted(names) == sorted(console_files.MEMBERS)


def test_only_the_named_files_are_extracted(tmp_path: Path) -> None:
    jar = tmp_path / "uplot.jar"
    with zipfile.ZipFile(jar, "w") as made:
        for member in (*console_files.MEMBERS["uplot"], "dist/uPlot.esm.js", "../evil.js"):
            made.writestr(f"META-INF/resources/webjars/uplot/1.0/{member}", member)
    folder = tmp_path / "vendor"
    console_files.extract([Artifact("org.webjars.npm:uplot:1.0", "0" * 64)], [jar], folder)
    found = {path.name: path.read_text() for path in folder.iterdir()}
    assert found == {Path(name).name: name for name in console_files.MEMBERS["uplot"]}


def test_a_webjar_that_lacks_a_file_is_an_error(tmp_path: Path) -> None:
    jar = tmp_path / "uplot.jar"
    with zipfile.ZipFile(jar, "w"):
        pass
    with pytest.raises(KeyError):
        console_files.extract([Artifact("org.webjars.npm:uplot:1.0", "0" * 64)], [jar], tmp_path)
