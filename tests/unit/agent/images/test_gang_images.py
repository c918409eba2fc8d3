"""Images come whole, once, by the digest of their run, and leave when others need the space."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from gangline_schemas.image_reference import run_image_key
from gangline_storage.local import LocalStore
from gangline_worker.agent.decide.keys import GangKey
from gangline_worker.agent.images import gang_images, problems
from gangline_worker.agent.images.gang_images import GangImage
from gangline_worker.agent.images.manifests import own_architecture
from support.builders.images import AS_ROOT, layer
from support.fakes.oci_registry import INDEX, MANIFEST, OciRegistry
from support.harnesses.image_node import BIG, SMALL, ImageNode, names

pytestmark = AS_ROOT


def test_settings_and_layers(hub: OciRegistry, node: ImageNode) -> None:
    digest = hub.push(
        "a", [SMALL, BIG], Env=["PATH=/x", "A=b=c"], Entrypoint=["e"], Cmd=["c"], WorkingDir="/w"
    )
    found = node.get(f"{hub.host}/team/one:a")
    assert found.name == f"{hub.host}/team/one:a@{digest}"
    assert (found.environment, found.folder) == ({"PATH": "/x", "A": "b=c"}, "/w")
    assert found.command == ("e", "c")
    tops = [node.folder / "images/layers" / root for root in found.roots]
    assert [names(top) for top in tops] == [["small"], ["big"]]


def test_the_platform_of_the_node_is_chosen(hub: OciRegistry, node: ImageNode) -> None:
    other = hub.push("other", [BIG], architecture="riscv64")
    own = hub.push("own", [SMALL])

    def entry(digest: str, architecture: str) -> dict[str, object]:
        platform = {"os": "linux", "architecture": architecture}
        size = len(hub.manifests[digest][1])
        return {"mediaType": MANIFEST, "digest": digest, "size": size, "platform": platform}

    both = {"manifests": [entry(other, "riscv64"), entry(own, own_architecture())]}
    listed = hub.add_manifest("both", INDEX, both)
    found = node.get(f"{hub.host}/a:both")
    assert found.name.endswith(listed), "what docker pull would name"
    assert len(found.layers) == 1
    hub.add_manifest("none", INDEX, {"manifests": [entry(other, "riscv64")]})
    for tag in ("none", "other"):
        with pytest.raises(problems.NoPlatform, match="riscv64"):
            node.get(f"{hub.host}/a:{tag}", job_id=tag)


def test_a_run_stays_with_its_digest(hub: OciRegistry, node: ImageNode, tmp_path: Path) -> None:
    first = hub.push("a", [SMALL])
    assert node.get(f"{hub.host}/a:a").name.endswith(first)
    second = hub.push("a", [BIG])
    other = ImageNode(tmp_path / "other", tmp_path / "store")
    assert other.get(f"{hub.host}/a:a", attempt=2).name.endswith(first), "on each node"
    assert node.get(f"{hub.host}/a:a", job_id="next").name.endswith(second)


@pytest.mark.parametrize(
    "kept", [b"", b"[]", b'{"image": 1}', b'{"image": "a:a"}', b'{"image": "evil.io/team/x@%s"}']
)
def test_a_damaged_digest_of_a_run_is_not_believed(
    hub: OciRegistry, node: ImageNode, tmp_path: Path, kept: bytes
) -> None:
    digest = hub.push("a", [SMALL])
    raw = kept.replace(b"%s", digest.encode())
    LocalStore(tmp_path / "store").put(run_image_key("nlp", "job"), raw)
    with pytest.raises(problems.ImageDamaged, match="its digest in the store"):
        node.get(f"{hub.host}/a:a")


def test_what_is_there_needs_no_registry(hub: OciRegistry, node: ImageNode, tmp_path: Path) -> None:
    hub.push("a", [SMALL, BIG])
    node.get(f"{hub.host}/a:a")
    asked = len(hub.requests)
    again = ImageNode(tmp_path / "node", tmp_path / "store")
    assert again.get(f"{hub.host}/a:a", attempt=2).layers
    assert len(hub.requests) == asked


def test_a_layer_that_comes_twice_is_mounted_once(hub: OciRegistry, node: ImageNode) -> None:
    hub.push("a", [SMALL, BIG, SMALL])
    hub.push("b", [BIG, SMALL])
    twice = node.get(f"{hub.host}/a:a")
    assert twice.layers == node.get(f"{hub.host}/a:b", job_id="b").layers


def test_only_registries_that_are_allowed_are_asked(hub: OciRegistry, tmp_path: Path) -> None:
    node = ImageNode(tmp_path / "node", tmp_path / "store", allowed=frozenset({"ghcr.io"}))
    with pytest.raises(problems.ImageDenied, match=r"nodes use only ghcr\.io"):
        node.get(f"{hub.host}/a:a")
    assert hub.requests == []


def test_two_gangs_fetch_an_image_once(hub: OciRegistry, node: ImageNode) -> None:
    hub.push("a", [SMALL, BIG])
    found: list[GangImage] = []

    def get(job_id: str) -> None:
        found.append(node.get(f"{hub.host}/a:a", job_id=job_id))

    threads = [threading.Thread(target=get, args=(f"job-{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    big = [path for path in hub.requests if found[0].layers[1] in path]
    assert len(big) <= 2, "the challenge, and the layer"
    assert hub.sent < 1.1 * (len(SMALL) + len(BIG)) + 4 * 1000


def test_the_least_recently_used_goes_never_what_is_in_use(
    hub: OciRegistry, tmp_path: Path
) -> None:
    node = ImageNode(tmp_path / "node", tmp_path / "store", budget_bytes=8 << 20)
    found = []
    for tag in "abc":
        hub.push(tag, [layer((tag, os.urandom(3 << 20)))])
        if tag == "c":
            with pytest.raises(problems.NodeDiskFull, match="GANGLINE_IMAGES_GB"):
                node.get(f"{hub.host}/x:{tag}", job_id=tag)
            node.images.release(GangKey("a", 1))
        found += node.get(f"{hub.host}/x:{tag}", job_id=tag).layers
    assert node.layers() == sorted(found[1:])


@pytest.mark.parametrize("sizes", [[1 << 40], [6 << 20, 6 << 20]])
def test_an_image_that_cannot_fit_deletes_none_of_others(
    hub: OciRegistry, tmp_path: Path, sizes: list[int]
) -> None:
    """Its manifest may lie about the sizes of layers, and costs nothing to push."""
    node = ImageNode(tmp_path / "node", tmp_path / "store", budget_bytes=8 << 20)
    hub.push("theirs", [BIG])
    theirs = node.get(f"{hub.host}/x:theirs", job_id="theirs", team="cv").layers
    node.images.release(GangKey("theirs", 1))
    kind, raw = hub.manifests[hub.push("a", [layer(("a", b"1")), SMALL])]
    content = json.loads(raw)
    content["layers"] = [
        {**given, "size": size} for given, size in zip(content["layers"], sizes, strict=False)
    ]
    hub.add_manifest("lies", kind, content)
    with pytest.raises(problems.NodeDiskFull, match="GANGLINE_IMAGES_GB"):
        node.get(f"{hub.host}/x:lies")
    assert node.layers() == list(theirs)


def test_layers_that_are_small_to_download_fill_no_disk(hub: OciRegistry, tmp_path: Path) -> None:
    """Each of these fits, and all together do not."""
    node = ImageNode(tmp_path / "node", tmp_path / "store", budget_bytes=8 << 20)
    zeros = [layer(*((f"{one}-{part}", bytes(1 << 20)) for part in range(3))) for one in range(9)]
    hub.push("bomb", zeros)
    with pytest.raises(problems.NodeDiskFull, match="GANGLINE_IMAGES_GB"):
        node.get(f"{hub.host}/x:bomb")
    folder = node.folder / "images"
    assert sum(file.stat().st_size for file in folder.rglob("*")) < 9 << 20


def test_what_waiting_jobs_need_goes_last(hub: OciRegistry, tmp_path: Path) -> None:
    node = ImageNode(tmp_path / "node", tmp_path / "store", budget_bytes=8 << 20)
    for tag in "abcd":
        hub.push(tag, [layer((tag, os.urandom(3 << 20)))])
    image = f"{hub.host}/x"
    early = node.images.get_early(GangKey("waits", 0), "nlp", f"{image}:a", threading.Event())
    node.get(f"{image}:b", job_id="b")
    node.images.release(GangKey("b", 1))
    third = node.get(f"{image}:c", job_id="c")
    assert node.layers() == sorted(early.layers + third.layers), "b was used later, by no one"
    with pytest.raises(problems.NodeDiskFull):
        node.images.get_early(GangKey("later", 0), "nlp", f"{image}:d", threading.Event())
    fourth = node.get(f"{image}:d", job_id="d")
    assert node.layers() == sorted(third.layers + fourth.layers), "a gang that starts needs it now"


def test_a_full_disk_is_named(
    hub: OciRegistry, node: ImageNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.push("a", [BIG])
    full = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda _: full)
    with pytest.raises(problems.NodeDiskFull, match="image disk full"):
        node.get(f"{hub.host}/a:a")


@pytest.mark.parametrize(
    "config",
    [
        {"Entrypoint": ["a\0b"]},
        {"Entrypoint": "sh"},
        {"Cmd": ["\ud800"]},
        {"Env": ["A=b\0c"]},
        {"Env": ["A=b"] * 5000},
        {"Env": ["A=" + "b" * (128 << 10)]},
        {"WorkingDir": "/" + "w" * 5000},
        {"WorkingDir": "/\0"},
    ],
    ids=lambda config: str(config)[:25],
)
def test_settings_that_no_program_can_have_are_refused(
    hub: OciRegistry, node: ImageNode, config: dict[str, object]
) -> None:
    hub.push("a", [SMALL], **config)
    with pytest.raises(problems.ImageRefused, match=r"config\.") as refused:
        node.get(f"{hub.host}/a:a")
    assert len(str(refused.value)) < 1000


def test_settings_that_are_no_text_are_refused(hub: OciRegistry, node: ImageNode) -> None:
    config = {"digest": hub.add_blob(b'{"os": "\xff"}'), "size": 14}
    layers = [{"digest": hub.add_blob(SMALL), "size": len(SMALL)}]
    hub.add_manifest("a", MANIFEST, {"config": config, "layers": layers})
    with pytest.raises(problems.ImageRefused):
        node.get(f"{hub.host}/a:a")


def test_the_text_of_a_problem_is_one_short_line() -> None:
    said = str(problems.ImageRefused("a", "name\n\ud800" + "n" * 10_000))
    assert said.startswith("image refused: a: name??n")
    assert len(said) < 600


def test_parts_of_layers_that_nobody_wants_go(hub: OciRegistry, node: ImageNode) -> None:
    left = node.folder / "images/downloads/nlp" / ("0" * 20)
    left.parent.mkdir()
    left.write_bytes(b"part")
    hub.push("a", [SMALL])
    node.get(f"{hub.host}/a:a")
    assert left.exists(), "its gang may start again"
    os.utime(left, (1, 1))
    node.get(f"{hub.host}/a:a", job_id="next")
    assert not left.exists()


def test_old_manifests_go(
    hub: OciRegistry, node: ImageNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang_images, "_MANIFESTS", 2)
    for tag in "abc":
        hub.push(tag, [SMALL], Cmd=[tag])
        node.get(f"{hub.host}/a:{tag}", job_id=tag)
    assert len(names(node.folder / "images/manifests/nlp")) == 2
