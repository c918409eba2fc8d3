"""What users name is resolved beneath its root: bundles and secrets."""

from __future__ import annotations

import io
import tarfile
from hashlib import sha256
from pathlib import Path

import pytest

from gangline_schemas.checkpoint import code_key
from gangline_storage.local import LocalStore
from gangline_worker.agent.checkpoints.transfer import Checkpoints
from gangline_worker.agent.decide.inputs import PrepareFailed
from gangline_worker.agent.decide.keys import GangKey
from gangline_worker.agent.host.folders import Folders
from gangline_worker.agent.host.inventory import Labels, node_name, take_inventory
from gangline_worker.agent.host.named_secrets import SecretMissing, read_secrets
from gangline_worker.agent.rendezvous.ports import PortBlock
from gangline_worker.agent.workspace import bundles
from gangline_worker.agent.workspace.bundles import BadBundle, fetch_bundle, unpack
from gangline_worker.agent.workspace.prepare import Preparer
from support.fixtures.node_checkpoints import ALLOCATION


def pack(path: Path, *members: tuple[str, bytes] | tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size = len(member[1])
            archive.addfile(info, io.BytesIO(member[1]))
    return path


def link(name: str, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = tarfile.SYMTYPE
    info.linkname = target
    return info


def test_a_bundle_is_fetched_once_checked_and_unpacked(tmp_path: Path):
    packed = pack(tmp_path / "p.tar.gz", ("train.py", b"pass"), ("pkg/a.py", b"a"))
    digest = sha256(packed.read_bytes()).hexdigest()
    store = LocalStore(tmp_path / "store")
    store.put_file(code_key("nlp", digest), packed)
    local = fetch_bundle(store, "nlp", digest, tmp_path / "bundles")
    store.delete(code_key("nlp", digest))
    assert fetch_bundle(store, "nlp", digest, tmp_path / "bundles") == local
    unpack(local, tmp_path / "code")
    assert (tmp_path / "code" / "pkg" / "a.py").read_bytes() == b"a"


def test_a_bundle_with_other_bytes_is_refused(tmp_path: Path):
    store = LocalStore(tmp_path / "store")
    digest = "0" * 64
    store.put(code_key("nlp", digest), b"something else")
    with pytest.raises(BadBundle, match="differs from the submitted one"):
        fetch_bundle(store, "nlp", digest, tmp_path / "bundles")


@pytest.mark.parametrize(
    "member",
    [("../outside", b"x"), link("a", "/etc/passwd"), link("a", "../../outside")],
    ids=["above", "absolute link", "link above"],
)
def test_nothing_leaves_the_folder(tmp_path: Path, member: tuple[str, bytes] | tarfile.TarInfo):
    packed = pack(tmp_path / "p.tar.gz", member)
    with pytest.raises(BadBundle):
        unpack(packed, tmp_path / "code" / "inner")
    assert not (tmp_path / "code" / "outside").exists()


def test_a_bundle_of_too_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bundles, "FILES_LIMIT", 3)
    packed = pack(tmp_path / "p.tar.gz", *((f"f{index}", b"") for index in range(4)))
    with pytest.raises(BadBundle, match="files"):
        unpack(packed, tmp_path / "code")


def test_a_bundle_whose_folders_lie_too_deep_is_the_users_fault(tmp_path: Path):
    packed = pack(tmp_path / "p.tar.gz", ("a/" * 1500 + "train.py", b"pass"))
    digest = sha256(packed.read_bytes()).hexdigest()
    store = LocalStore(tmp_path / "store")
    store.put_file(code_key("nlp", digest), packed)
    spec = ALLOCATION.spec.model_copy(update={"code_bundle": digest})
    allocation = ALLOCATION.model_copy(update={"spec": spec})
    for folder in ("node", "sockets"):
        (tmp_path / folder).mkdir()
    folders = Folders(tmp_path / "node", tmp_path / "sockets", tmp_path / "secrets")
    checkpoints = Checkpoints(tmp_path / "node" / "checkpoints", store, node_id="n", link=False)
    preparer = Preparer(folders, store, checkpoints, lambda _: None)
    _, failed = preparer.prepare(GangKey("job", 1), allocation, allocation.nodes[0])
    assert isinstance(failed, PrepareFailed)
    assert failed.user_fault
    assert "too deep" in failed.message


def test_a_bundle_that_is_cut_off_is_refused(tmp_path: Path):
    packed = pack(tmp_path / "p.tar.gz", ("a", bytes(100_000)))
    packed.write_bytes(packed.read_bytes()[:60])
    with pytest.raises(BadBundle, match="unpacked"):
        unpack(packed, tmp_path / "code")


def secret(folder: Path, team: str, name: str, value: bytes, mode: int = 0o600) -> Path:
    path = folder / team / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(value)
    path.chmod(mode)
    return path


def test_secrets_are_read_by_name(tmp_path: Path):
    secret(tmp_path, "nlp", "HF_TOKEN", b"value\n")
    assert read_secrets(tmp_path, "nlp", ["HF_TOKEN"]) == {"HF_TOKEN": "value"}


@pytest.mark.parametrize(
    ("value", "mode"), [(b"value", 0o644), (b"", 0o600), (b"\xff\xfe", 0o600), (b"a\0b", 0o600)]
)
def test_a_secret_that_cannot_be_given_is_named_without_its_value(
    tmp_path: Path, value: bytes, mode: int
):
    secret(tmp_path, "nlp", "HF_TOKEN", value, mode)
    with pytest.raises(SecretMissing, match="HF_TOKEN") as found:
        read_secrets(tmp_path, "nlp", ["HF_TOKEN"])
    assert "value" not in str(found.value)


@pytest.mark.parametrize("name", ["../other/KEY", "MISSING", "a/b", ""])
def test_a_secret_of_another_team_or_none_is_missing(tmp_path: Path, name: str):
    secret(tmp_path, "other", "KEY", b"value")
    (tmp_path / "nlp").mkdir()
    with pytest.raises(SecretMissing):
        read_secrets(tmp_path, "nlp", [name])


def test_logins_for_images_are_no_secret_of_a_job(tmp_path: Path):
    secret(tmp_path, "nlp", "IMAGE_AUTH", b"{}")
    with pytest.raises(SecretMissing, match="IMAGE_AUTH is for the agent alone"):
        read_secrets(tmp_path, "nlp", ["HF_TOKEN", "IMAGE_AUTH"])


def test_a_link_to_another_teams_secret_is_not_followed(tmp_path: Path):
    target = secret(tmp_path, "other", "KEY", b"value")
    (tmp_path / "nlp").mkdir()
    (tmp_path / "nlp" / "KEY").symlink_to(target)
    with pytest.raises(SecretMissing):
        read_secrets(tmp_path, "nlp", ["KEY"])


@pytest.mark.parametrize(
    ("host", "name"),
    [("GPU_Node.7.example", "gpu-node"), ("--", "node"), ("x" * 99, "x" * 63)],
)
def test_a_hostname_becomes_an_identifier(host: str, name: str):
    assert node_name(host) == name


def test_slots_stand_in_for_gpus():
    labels = Labels("n", "i", "127.0.0.1", "r", "b", {"disk": "nvme"})
    node = take_inventory(labels, slots=3, ports=(20_001,))
    assert node.labels == {"disk": "nvme"}
    assert [(gpu.index, gpu.model) for gpu in node.gpus] == [(0, "cpu"), (1, "cpu"), (2, "cpu")]
    assert node.rendezvous_ports == (20_001,)


def test_a_node_without_slots_takes_jobs_without_gpus_alone() -> None:
    labels = Labels("n", "i", "127.0.0.1", "r", "b")
    node = take_inventory(labels, slots=0, ports=(20_001,), cpus=96, memory_gb=256)
    assert (node.gpus, node.cpu_only, node.cpus, node.memory_gb) == ((), True, 96, 256)


def test_two_agents_of_a_machine_never_offer_the_same_port() -> None:
    blocks = [PortBlock.take("node-0", "127.0.0.1") for _ in range(3)]
    ports = [port for block in blocks for port in block.ports]
    assert len(ports) == len(set(ports)) > 96
    assert max(ports) < 32_768
    for block in blocks:
        block.close()
