"""Registries that are busy, broken, refuse or lie: the image comes, or a named reason."""

from __future__ import annotations

import base64
import json
import os
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from gangline.local.certificates import Authority
from gangline_storage.local import LocalStore
from gangline_worker.agent.decide.keys import GangKey
from gangline_worker.agent.images import problems, registry
from gangline_worker.agent.images.gang_images import GangImages, ImageOptions
from support.builders.images import AS_ROOT, layer
from support.fakes.oci_registry import OciRegistry
from support.harnesses.image_node import BIG, SMALL, ImageNode

pytestmark = AS_ROOT

USER = "robot:hunter2"


def test_a_cut_download_continues(hub: OciRegistry, node: ImageNode) -> None:
    hub.push("a", [BIG])
    hub.cuts.extend([10_000_000, 1_000_000, 1_000_000])  # of the configuration none
    assert node.get(f"{hub.host}/a:a").layers
    assert hub.sent < 1.01 * len(BIG) + 1000, "no byte came twice"


def test_a_busy_registry_is_asked_again(hub: OciRegistry, node: ImageNode) -> None:
    hub.push("a", [SMALL])
    hub.busy = 3
    assert node.get(f"{hub.host}/a:a").layers


def test_credentials_of_the_node_and_of_the_team(hub: OciRegistry, node: ImageNode) -> None:
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
    node: ImageNode,
    spoil: Callable[[OciRegistry], None],
    problem: type[problems.ImageProblem],
) -> None:
    hub.push("a", [BIG])
    spoil(hub)
    with pytest.raises(problem, match=f"^image {problem.name}: {hub.host}/a:a"):
        node.get(f"{hub.host}/a:a")
    assert node.layers() == []


def test_a_changed_manifest_never_runs(hub: OciRegistry, node: ImageNode) -> None:
    digest = hub.push("a", [SMALL])
    _changed_manifest(hub)
    with pytest.raises(problems.ImageDamaged, match="digest mismatch"):
        node.get(f"{hub.host}/a@{digest}")


def test_a_registry_without_ranges_sends_a_cut_layer_again(
    hub: OciRegistry, node: ImageNode
) -> None:
    layers = [layer(("big", os.urandom(200_000))), SMALL]
    hub.push("a", layers)
    hub.no_ranges = True
    hub.cuts.extend([1000, len(layers[0]) - 1])  # of the configuration all
    assert node.get(f"{hub.host}/a:a").layers


def test_a_long_challenge_holds_no_thread(hub: OciRegistry, node: ImageNode) -> None:
    """A slow expression keeps Python's lock, so the whole agent would stop."""
    hub.push("a", [SMALL])
    hub.challenge = "Bearer " + "a" * 60_000
    before_s = time.thread_time()
    with pytest.raises(problems.ImageDenied):
        node.get(f"{hub.host}/a:a")
    assert time.thread_time() - before_s < 5


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
    hub: OciRegistry, node: ImageNode, spoil: Callable[[OciRegistry], None]
) -> None:
    hub.push("a", [BIG])
    spoil(hub)
    with pytest.raises(problems.RegistryAway) as refused:
        node.get(f"{hub.host}/a:a")
    assert "secret" not in str(refused.value)
    port = int(hub.host.rpartition(":")[2])
    open_ones = [
        one for one in psutil.Process().net_connections("tcp") if one.raddr and one.raddr[1] == port
    ]
    assert open_ones == [], "each connection was closed, though the error is kept"


def test_another_teams_registry_spoils_no_download(hub: OciRegistry, node: ImageNode) -> None:
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
    hub: OciRegistry, node: ImageNode, monkeypatch: pytest.MonkeyPatch
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
