"""Images come from registries whole, once, by the digest of their run, or with a named reason."""

from __future__ import annotations

import base64
import json
import os
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gangline.local.certificates import Authority
from gangline_schemas.image_reference import run_image_key
from gangline_storage.local import LocalStore
from gangline_worker.agent.decide.keys import GangKey
from gangline_worker.agent.images import gang_images, problems, registry
from gangline_worker.agent.images.gang_images import GangImage, GangImages, ImageOptions
from support.builders.images import AS_ROOT, layer
from support.fakes.oci_registry import INDEX, MANIFEST, OciRegistry

pytestmark = AS_ROOT

BIG = layer(("big", os.urandom(3 << 20)))
SMALL = layer(("small", b"1"))
USER = "robot:hunter2"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class Node:
    """A node's images; each `get` is for another gang."""

    def __init__(
        self,
        folder: Path,
        store: Path,
        budget_bytes: int = 1 << 30,
        allowed: frozenset[str] = frozenset(),
    ) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.auth = folder / "auth.json"
        options = ImageOptions(budget_bytes, auth_file=self.auth, allowed=allowed)
        self.auth.write_text('{"auths": {}}')
        self.images = GangImages(folder, folder / "secrets", LocalStore(store), options, None)

    def get(
        self, image: str, job_id: str = "job", team: str = "nlp", attempt: int = 1
    ) -> GangImage:
        return self.images.get(GangKey(job_id, attempt), team, image)

    def layers(self) -> list[str]:
        return names(self.folder / "images/layers")


@pytest.fixture
def hub() -> Iterator[OciRegistry]:
    with OciRegistry() as made:
        yield made


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "node", tmp_path / "store")


def test_settings_and_layers(hub: OciRegistry, node: Node) -> None:
    digest = hub.push(
        "a", [SMALL, BIG], Env=["PATH=/x", "A=b=c"], Entrypoint=["e"], Cmd=["c"], WorkingDir="/w"
    )
    found = node.get(f"{hub.host}/team/one:a")
    assert found.name == f"{hub.host}/team/one:a@{digest}"
    assert (found.environment, found.folder) == ({"PATH": "/x", "A": "b=c"}, "/w")
    assert found.command == ("e", "c")
    tops = [node.folder / "images/layers" / root for root in found.roots]
    assert [names(top) for top in tops] == [["small"], ["big"]]


def test_the_platform_of_the_node_is_chosen(hub: OciRegistry, node: Node) -> None:
    other = hub.push("other", [BIG], architecture="riscv64")
    own = hub.push("own", [SMALL])

    def entry(digest: str, architecture: str) -> dict[str, object]:
        platform = {"os": "linux", "architecture": architecture}
        size = len(hub.manifests[digest][1])
        return {"mediaType": MANIFEST, "digest": digest, "size": size, "platform": platform}

    from gangline_worker.agent.images.manifests import own_architecture

    both = {"manifests": [entry(other, "riscv64"), entry(own, own_architecture())]}
    listed = hub.add_manifest("both", INDEX, both)
    found = node.get(f"{hub.host}/a:both")
    assert found.name.endswith(listed), "what docker pull would name"
    assert len(found.layers) == 1
    hub.add_manifest("none", INDEX, {"manifests": [entry(other, "riscv64")]})
    for tag in ("none", "other"):
        with pytest.raises(problems.NoPlatform, match="riscv64"):
            node.get(f"{hub.host}/a:{tag}", job_id=tag)


def test_a_run_stays_with_its_digest(hub: OciRegistry, node: Node, tmp_path: Path) -> None:
    first = hub.push("a", [SMALL])
    assert node.get(f"{hub.host}/a:a").name.endswith(first)
    second = hub.push("a", [BIG])
    other = Node(tmp_path / "other", tmp_path / "store")
    assert other.get(f"{hub.host}/a:a", attempt=2).name.endswith(first), "on each node"
    assert node.get(f"{hub.host}/a:a", job_id="next").name.endswith(second)


@pytest.mark.parametrize(
    "kept", [b"", b"[]", b'{"image": 1}', b'{"image": "a:a"}', b'{"image": "evil.io/team/x@%s"}']
)
def test_a_damaged_digest_of_a_run_is_not_believed(
    hub: OciRegistry, node: Node, tmp_path: Path, kept: bytes
) -> None:
    digest = hub.push("a", [SMALL])
    raw = kept.replace(b"%s", digest.encode())
    LocalStore(tmp_path / "store").put(run_image_key("nlp", "job"), raw)
    with pytest.raises(problems.ImageDamaged, match="its digest in the store"):
        node.get(f"{hub.host}/a:a")


def test_what_is_there_needs_no_registry(hub: OciRegistry, node: Node, tmp_path: Path) -> None:
    hub.push("a", [SMALL, BIG])
    node.get(f"{hub.host}/a:a")
    asked = len(hub.requests)
    again = Node(tmp_path / "node", tmp_path / "store")
    assert again.get(f"{hub.host}/a:a", attempt=2).layers
    assert len(hub.requests) == asked


def test_a_layer_that_comes_twice_is_mounted_once(hub: OciRegistry, node: Node) -> None:
    hub.push("a", [SMALL, BIG, SMALL])
    hub.push("b", [BIG, SMALL])
    twice = node.get(f"{hub.host}/a:a")
    assert twice.layers == node.get(f"{hub.host}/a:b", job_id="b").layers


def test_only_registries_that_are_allowed_are_asked(hub: OciRegistry, tmp_path: Path) -> None:
    node = Node(tmp_path / "node", tmp_path / "store", allowed=frozenset({"ghcr.io"}))
    with pytest.raises(problems.ImageDenied, match=r"nodes use only ghcr\.io"):
        node.get(f"{hub.host}/a:a")
    assert hub.requests == []


def test_two_gangs_fetch_an_image_once(hub: OciRegistry, node: Node) -> None:
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


def test_a_cut_download_continues(hub: OciRegistry, node: Node) -> None:
    hub.push("a", [BIG])
    hub.cuts.extend([10_000_000, 1_000_000, 1_000_000])  # of the configuration none
    assert node.get(f"{hub.host}/a:a").layers
    assert hub.sent < 1.01 * len(BIG) + 1000, "no byte came twice"


def test_a_busy_registry_is_asked_again(hub: OciRegistry, node: Node) -> None:
    hub.push("a", [SMALL])
    hub.busy = 3
    assert node.get(f"{hub.host}/a:a").layers


def test_credentials_of_the_node_and_of_the_team(hub: OciRegistry, node: Node) -> None:
    hub.user = USER
    hub.push("a", [SMALL])

    def config(user: str) -> str:
        auth = base64.b64encode(user.encode()).decode()
        return json.dumps({"auths": {f"https://{hub.host}/v2/": {"auth": auth}}})

    image = f"{hub.host}/a:a"
    with pytest.raises(problems.ImageDenied, match="no credentials for it on this node"):
        node.get(image)
    node.auth.write_text(config("robot:wrong"))
    with pytest.raises(problems.ImageDenied, match="401; these credentials") as refused:
        node.get(image)
    assert "wrong" not in str(refused.value)
    own = node.folder / "secrets/nlp/IMAGE_AUTH"
    own.parent.mkdir(parents=True)
    own.write_text(config(USER))
    with pytest.raises(problems.ImageDenied, match="must be 0600"):
        node.get(image)
    own.chmod(0o600)
    assert node.get(image).layers
    with pytest.raises(problems.ImageDenied):
        node.get(image, job_id="theirs", team="cv")  # though the layers are here


def _missing(hub: OciRegistry) -> None:
    hub.manifests.clear()


def _no_layer(hub: OciRegistry) -> None:
    del hub.blobs[next(digest for digest, raw in hub.blobs.items() if raw == BIG)]


def _wrong(hub: OciRegistry) -> None:
    hub.wrong.update(hub.blobs)


def _changed_manifest(hub: OciRegistry) -> None:
    hub.manifests = {name: (kind, raw + b" ") for name, (kind, raw) in hub.manifests.items()}


def _old_schema(hub: OciRegistry) -> None:
    hub.manifests["a"] = ("application/vnd.docker.distribution.manifest.v1+json", b"{}")


def _busy_for_ever(hub: OciRegistry) -> None:
    hub.busy = 1000


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (_missing, problems.ImageNotFound),
        (_no_layer, problems.ImageNotFound),
        (_wrong, problems.ImageDamaged),
        (_old_schema, problems.ImageRefused),
        (_busy_for_ever, problems.RegistryAway),
    ],
)
def test_problems_have_names(
    hub: OciRegistry,
    node: Node,
    spoil: Callable[[OciRegistry], None],
    problem: type[problems.ImageProblem],
) -> None:
    hub.push("a", [BIG])
    spoil(hub)
    with pytest.raises(problem, match=f"^image {problem.name}: {hub.host}/a:a"):
        node.get(f"{hub.host}/a:a")
    assert node.layers() == []


def test_a_changed_manifest_never_runs(hub: OciRegistry, node: Node) -> None:
    digest = hub.push("a", [SMALL])
    _changed_manifest(hub)
    with pytest.raises(problems.ImageDamaged, match="digest mismatch"):
        node.get(f"{hub.host}/a@{digest}")


def test_the_least_recently_used_goes_never_what_is_in_use(
    hub: OciRegistry, tmp_path: Path
) -> None:
    node = Node(tmp_path / "node", tmp_path / "store", budget_bytes=8 << 20)
    found = []
    for tag in "abc":
        hub.push(tag, [layer((tag, os.urandom(3 << 20)))])
        if tag == "c":
            with pytest.raises(problems.NodeDiskFull, match="GANGLINE_IMAGES_GB"):
                node.get(f"{hub.host}/x:{tag}", job_id=tag)
            node.images.release(GangKey("a", 1))
        found += node.get(f"{hub.host}/x:{tag}", job_id=tag).layers
    assert node.layers() == sorted(found[1:])


def test_a_full_disk_is_named(
    hub: OciRegistry, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.push("a", [BIG])
    full = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda _: full)
    with pytest.raises(problems.NodeDiskFull, match="image disk full"):
        node.get(f"{hub.host}/a:a")


def _no_retry_time(hub: OciRegistry) -> None:
    hub.busy, hub.again = 1, "\N{SUPERSCRIPT TWO}"


def _no_realm(hub: OciRegistry) -> None:
    hub.realm = "http://[/token"


def _no_place(hub: OciRegistry) -> None:
    hub.moved = "http://[/"


def _two_lines(hub: OciRegistry) -> None:
    hub.token = "secret\r\nX: y"


@pytest.mark.parametrize("spoil", [_no_retry_time, _no_realm, _no_place, _two_lines])
def test_answers_that_make_no_sense_end_no_agent(
    hub: OciRegistry, node: Node, spoil: Callable[[OciRegistry], None]
) -> None:
    hub.push("a", [BIG])
    spoil(hub)
    with pytest.raises(problems.RegistryAway) as refused:
        node.get(f"{hub.host}/a:a")
    assert "secret" not in str(refused.value)


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
    hub: OciRegistry, node: Node, config: dict[str, object]
) -> None:
    hub.push("a", [SMALL], **config)
    with pytest.raises(problems.ImageRefused, match=r"config\.") as refused:
        node.get(f"{hub.host}/a:a")
    assert len(str(refused.value)) < 1000


def test_settings_that_are_no_text_are_refused(hub: OciRegistry, node: Node) -> None:
    config = {"digest": hub.add_blob(b'{"os": "\xff"}'), "size": 14}
    layers = [{"digest": hub.add_blob(SMALL), "size": len(SMALL)}]
    hub.add_manifest("a", MANIFEST, {"config": config, "layers": layers})
    with pytest.raises(problems.ImageRefused):
        node.get(f"{hub.host}/a:a")


def test_the_text_of_a_problem_is_one_short_line() -> None:
    said = str(problems.ImageRefused("a", "name\n\ud800" + "n" * 10_000))
    assert said.startswith("image refused: a: name??n")
    assert len(said) < 600


def test_another_teams_registry_spoils_no_download(hub: OciRegistry, node: Node) -> None:
    digest = hub.push("a", [BIG])
    with OciRegistry() as theirs:
        theirs.blobs, theirs.manifests = dict(hub.blobs), hub.manifests
        theirs.wrong.update(theirs.blobs)
        theirs.wrong.discard(json.loads(hub.manifests[digest][1])["config"]["digest"])
        theirs.cuts.extend([1 << 30, 1_000_000, *[0] * 10])
        with pytest.raises(problems.ImageProblem):
            node.get(f"{theirs.host}/a:a", job_id="theirs", team="cv")
    assert node.get(f"{hub.host}/a:a").layers
    assert hub.sent < 1.01 * len(BIG) + 1000


def test_a_gang_that_ends_waits_for_no_registry(
    hub: OciRegistry, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_FIRST_DELAY_S", 1.0)
    hub.push("a", [SMALL])
    hub.busy, hub.again = 1000, "50"
    failed: list[BaseException] = []

    def get() -> None:
        try:
            node.get(f"{hub.host}/a:a")
        except problems.ImageProblem as error:
            failed.append(error)

    thread = threading.Thread(target=get)
    thread.start()
    while not hub.requests:
        thread.join(0.01)
    node.images.release(GangKey("job", 1))
    thread.join(40)
    assert not thread.is_alive()
    assert "its gang or the agent ends" in str(failed[0])


def test_parts_of_layers_that_nobody_wants_go(hub: OciRegistry, node: Node) -> None:
    left = node.folder / "images/downloads/nlp" / ("0" * 20)
    left.parent.mkdir()
    left.write_bytes(b"part")
    hub.push("a", [SMALL])
    node.get(f"{hub.host}/a:a")
    assert left.exists(), "its gang may start again"
    os.utime(left, (1, 1))
    node.get(f"{hub.host}/a:a", job_id="next")
    assert not left.exists()


def test_old_manifests_go(hub: OciRegistry, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_images, "_MANIFESTS", 2)
    for tag in "abc":
        hub.push(tag, [SMALL], Cmd=[tag])
        node.get(f"{hub.host}/a:{tag}", job_id=tag)
    assert len(names(node.folder / "images/manifests/nlp")) == 2


def test_a_registry_with_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path / "tls")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("registry"))
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    with OciRegistry(tls=context) as hub:
        at = f"https://localhost:{hub.host.partition(':')[2]}"
        hub.realm = f"{at}/token"
        hub.push("a", [SMALL, BIG])
        options = ImageOptions(1 << 30, registry.RegistryOptions(mirror=at))
        store = LocalStore(tmp_path / "store")
        (tmp_path / "node").mkdir()
        images = GangImages(tmp_path / "node", tmp_path, store, options, None)
        assert len(images.get(GangKey("job", 1), "nlp", "team/one:a").layers) == 2
        hub.moved = hub.realm.replace("https", "http")
        hub.push("b", [layer(("b", b"2"))])
        with pytest.raises(problems.ImageDenied, match="without TLS"):
            images.get(GangKey("other", 1), "nlp", "team/one:b")


def test_the_login_is_that_of_the_mirror() -> None:
    options = registry.RegistryOptions(mirror="http://mirror:5000/")
    assert registry.host_asked("docker.io", options) == "mirror:5000"
    assert registry.host_asked("ghcr.io", options) == "ghcr.io"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_FIRST_DELAY_S", 0.001)
