"""Devices by CDI: what a file of the vendor gives to a gang, and files that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gangline_worker.agent.host.cdi import Cdi, CdiError, SharedFile, folders_of
from support.builders.cdi import GPUS, LIBRARIES, UUIDS, VERSION, cdi_text, gpu_machine

KIND = "nvidia.com/gpu"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    gpu_machine(tmp_path)
    (tmp_path / "cdi").mkdir()
    return tmp_path / "cdi"


def written(folder: Path, **change: Any) -> Path:
    """The machine's file in JSON, with other values."""
    found = yaml.safe_load(cdi_text(folder.parent)) | change
    path = folder / "nvidia.json"
    path.write_text(json.dumps(found), encoding="utf-8")
    return path


@pytest.mark.parametrize("form", ["yaml", "json"])
@pytest.mark.parametrize("names", [(UUIDS[1], "1"), ("1",)], ids=["uuid", "index"])
def test_a_gang_gets_what_the_file_says_of_its_gpu(
    folder: Path, form: str, names: tuple[str, ...]
) -> None:
    if form == "yaml":
        (folder / "nvidia.yaml").write_text(cdi_text(folder.parent), encoding="utf-8")
    else:
        written(folder)
    given = Cdi([folder]).devices(KIND, [names])
    assert given is not None
    assert set(given.nodes) == {
        ("/dev/zero", "/dev/nvidia-uvm"),
        ("/dev/full", "/dev/nvidiactl"),
        (GPUS[1], "/dev/nvidia1"),
    }
    smi = "/usr/bin/nvidia-smi"
    assert SharedFile(f"{folder.parent}{smi}", smi, read_only=True) in given.files
    assert {place: says for says, place in given.links} == {
        f"{LIBRARIES}/libcuda.so.1": f"libcuda.so.{VERSION}",
        f"{LIBRARIES}/libnvidia-ml.so.1": f"libnvidia-ml.so.{VERSION}",
        f"{LIBRARIES}/libcuda.so": "libcuda.so.1",
    }
    assert given.environment["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert (given.libraries, given.left_out) == ((LIBRARIES,), ("enable-cuda-compat",))


def test_without_gpus_or_without_a_file_there_is_nothing(folder: Path) -> None:
    cdi = Cdi([folder, folder / "nowhere"])
    assert cdi.devices(KIND, [("0",)]) is None
    written(folder, kind="amd.com/gpu")
    assert cdi.devices(KIND, [("0",)]) is None
    given = cdi.devices("amd.com/gpu", [])
    assert given is not None
    assert (given.nodes, given.files, given.environment) == ((), (), {})


def test_a_file_that_was_written_again_counts(folder: Path) -> None:
    cdi = Cdi([folder])
    written(folder)
    assert cdi.devices(KIND, [("0",)]) is not None
    written(folder, devices=[{"name": "7", "containerEdits": {}}])
    with pytest.raises(CdiError, match=r"nvidia\.com/gpu=0 is in no file: .*nvidia\.json; write"):
        cdi.devices(KIND, [("0",)])


def test_a_device_of_a_later_folder_counts(folder: Path) -> None:
    later = folder.with_name("run")
    later.mkdir()
    written(folder)
    node = {"path": "/dev/nvidia9", "hostPath": "/dev/null"}
    own = {"name": "0", "containerEdits": {"deviceNodes": [node]}}
    found = {"cdiVersion": "1.1.0", "kind": KIND, "devices": [own], "annotations": {"a": "b"}}
    (later / "own.yaml").write_text(yaml.safe_dump(found), encoding="utf-8")
    given = Cdi([folder, later]).devices(KIND, [("0",)])
    assert given is not None
    assert (given.nodes, given.files) == ((("/dev/null", "/dev/nvidia9"),), ())


EDITS = "containerEdits"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"cdiVersion": "2.0.0"}, r"nvidia\.json: cdiVersion: "),
        ({"devices": []}, r"nvidia\.json: devices: "),
        ({"devices": [{"name": "0"}]}, r"nvidia\.json: devices\.0\.containerEdits: Field required"),
        ({EDITS: {"mounts": [{"hostPath": "x"}]}}, r"json: containerEdits\.mounts\.0\.hostPath: "),
        ({EDITS: {"deviceNodes": [{"path": "/dev/no"}]}}, "json: /dev/no: No such file"),
        ({EDITS: {"deviceNodes": [{"path": "/etc"}]}}, "json: /etc is not a device"),
        (
            {EDITS: {"mounts": [{"hostPath": "/no/lib.so", "containerPath": "/lib.so"}]}},
            r"json: /no/lib\.so is not there; write it again: nvidia-ctk cdi generate",
        ),
        (
            {EDITS: {"mounts": [{"hostPath": "/", "containerPath": "/t", "type": "tmpfs"}]}},
            "json: a mount of the type 'tmpfs' for /t; sandboxes take files",
        ),
        (
            {EDITS: {"hooks": [{"path": "/h", "args": ["h", "create-symlinks", "--link", "a"]}]}},
            "json: the link 'a' has no place",
        ),
        ({EDITS: {"env": ["NAME"]}}, r"json: containerEdits\.env\.0: "),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    folder: Path, change: dict[str, Any], why: str
) -> None:
    written(folder, **change)
    with pytest.raises(CdiError, match=why):
        Cdi([folder]).devices(KIND, [("0",)])


@pytest.mark.parametrize("text", ["kind: [", "", "- 1", "a: &a [*a]", "\x00", "[" * 100_000])
def test_a_file_that_is_no_yaml_is_named(folder: Path, text: str) -> None:
    (folder / "broken.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(CdiError, match=r"broken\.yaml: "):
        Cdi([folder]).devices(KIND, [("0",)])


def test_folders_are_listed_by_commas() -> None:
    assert folders_of(" /etc/cdi, /run/cdi,") == (Path("/etc/cdi"), Path("/run/cdi"))
    assert folders_of("") == ()
