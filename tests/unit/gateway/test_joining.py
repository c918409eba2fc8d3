"""Nodes join with tokens: who may make them, how often they work, and what a node gets."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from gangline_gateway.node_settings import NodeSettingsError, read_node_settings
from gangline_gateway.node_tokens import FOLDER, NodeTokens
from gangline_storage.local import LocalStore
from support.builders.gateway import GatewayHarness, bearer, served
from support.builders.live_job import unfit

NODES = """
bootstrap_servers = "kafka:9093"
kafka_file = "agent.toml"
peer_ca_file = "ca.pem"
[agent]
heartbeat_interval_s = 5
[environment]
AWS_REGION = "eu-1"
[gateway]
gateway_port = 8443
"""
KAFKA = '"sasl.password" = "hush"\n"ssl.ca.location" = "ca.pem"\n'


@pytest.fixture
def nodes_file(tmp_path: Path) -> Path:
    (tmp_path / "ca.pem").write_text("PEM")
    (tmp_path / "agent.toml").write_text(KAFKA)
    file = tmp_path / "nodes.toml"
    file.write_text(NODES)
    return file


@pytest.fixture
def harness(tmp_path: Path, nodes_file: Path) -> GatewayHarness:
    return GatewayHarness(tmp_path)


@pytest.fixture
def gateway(harness: GatewayHarness) -> Iterator[httpx.Client]:
    with served(harness) as client:
        yield client


def made(gateway: httpx.Client, **body: object) -> str:
    answer = gateway.post("/v1/node-tokens", json=body, headers=bearer("admin"))
    assert answer.status_code == 201, answer.text
    return str(answer.json()["token"])


def joins(gateway: httpx.Client, token: str, node_id: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"}
    return gateway.post("/v1/nodes/join", json={"node_id": node_id}, headers=headers)


def test_a_node_gets_its_settings_once(gateway: httpx.Client) -> None:
    token = made(gateway)
    answer = joins(gateway, token, "n1")
    assert answer.status_code == 200
    found = answer.json()
    assert found.pop("release")
    assert found == {
        "node_id": "n1",
        "settings": {"bootstrap_servers": "kafka:9093", "heartbeat_interval_s": 5},
        "kafka": {"sasl.password": "hush"},
        "kafka_ca": "PEM",
        "files": {"peer_ca_file": "PEM"},
        "environment": {"AWS_REGION": "eu-1"},
    }
    again = joins(gateway, token, "n2")
    assert (again.status_code, "gangline node token" in again.json()["detail"]) == (401, True)


def test_a_node_token_is_good_for_nothing_else(gateway: httpx.Client) -> None:
    headers = {"Authorization": f"Bearer {made(gateway)}"}
    assert gateway.get("/v1/nodes", headers=headers).status_code == 401
    assert joins(gateway, "gl_node_unknown", "n1").status_code == 401


@pytest.mark.parametrize("who", ["nlp", "svc"])
def test_only_admins_make_tokens(gateway: httpx.Client, who: str) -> None:
    assert gateway.post("/v1/node-tokens", json={}, headers=bearer(who)).status_code == 403
    assert joins(gateway, bearer(who)["Authorization"].split()[1], "n1").status_code == 401


def test_the_name_of_a_present_node_is_refused_and_costs_no_use(
    harness: GatewayHarness, gateway: httpx.Client
) -> None:
    harness.join("n1")
    token = made(gateway)
    taken = joins(gateway, token, "n1")
    assert (taken.status_code, taken.json()["type"]) == (409, "urn:gangline:problem:node-present")
    assert joins(gateway, token, "n2").status_code == 200


def test_without_settings_of_nodes_no_token_is_made(
    gateway: httpx.Client, nodes_file: Path
) -> None:
    nodes_file.unlink()
    answer = gateway.post("/v1/node-tokens", json={}, headers=bearer("admin"))
    assert (answer.status_code, str(nodes_file) in answer.json()["detail"]) == (409, True)


def test_a_token_lets_in_as_many_nodes_as_it_says_however_many_ask_at_once(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    token, _ = NodeTokens(store).make(5, 60, "root")
    with ThreadPoolExecutor(8) as pool:
        let = list(pool.map(lambda n: NodeTokens(store).use(token, f"n{n}"), range(16)))
    assert sum(let) == 5


def test_a_token_expires_and_is_deleted_later(tmp_path: Path) -> None:
    now, store = [1000.0], LocalStore(tmp_path)
    tokens = NodeTokens(store, lambda: now[0])
    token, kept = tokens.make(2, 60, "root")
    assert (kept.expires_at.timestamp(), tokens.use(token, "n1")) == (1060.0, True)
    now[0] = 1060.0
    assert (tokens.find(token), tokens.use(token, "n2")) == (None, False)
    tokens.make(1, 60, "root")
    assert len({found.key.split("/")[2] for found in store.list(FOLDER)}) == 1


def test_a_revoked_token_lets_no_node_in(gateway: httpx.Client) -> None:
    body = {"nodes": 3}
    token, other = (
        gateway.post("/v1/node-tokens", json=body, headers=bearer("admin")).json() for _ in range(2)
    )
    assert joins(gateway, token["token"], "n1").status_code == 200
    listed = gateway.get("/v1/node-tokens", headers=bearer("admin")).json()["tokens"]
    assert {(row["token_id"], row["nodes"], row["used"], row["made_by"]) for row in listed} == {
        (token["token_id"], 3, 1, "root"),
        (other["token_id"], 3, 0, "root"),
    }

    path = f"/v1/node-tokens/{token['token_id']}"
    for who in ("nlp", "svc"):
        assert gateway.delete(path, headers=bearer(who)).status_code == 403
        assert gateway.get("/v1/node-tokens", headers=bearer(who)).status_code == 403
    assert gateway.delete(path, headers=bearer("admin")).status_code == 204
    again = gateway.delete(path, headers=bearer("admin"))
    assert (again.status_code, "gangline node tokens" in again.json()["detail"]) == (404, True)
    assert joins(gateway, token["token"], "n2").status_code == 401
    assert joins(gateway, other["token"], "n2").status_code == 200
    listed = gateway.get("/v1/node-tokens", headers=bearer("admin")).json()["tokens"]
    assert [(row["token_id"], row["used"]) for row in listed] == [(other["token_id"], 1)]


def test_the_store_has_no_token(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    token, _ = NodeTokens(store).make(1, 60, "root")
    (key,) = (found.key for found in store.list(FOLDER))
    assert token not in key + store.get(key).decode()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kafka_file = 'none.toml'", "kafka_file"),
        ("agent = 1", "agent: must be a table"),
        ("[kafka]\n'ssl.ca.location' = 'none.pem'", "none.pem cannot be read"),
        ("= 1", "is not TOML"),
    ],
)
def test_bad_settings_are_named(nodes_file: Path, text: str, said: str) -> None:
    nodes_file.write_text(text)
    with pytest.raises(NodeSettingsError, match=said):
        read_node_settings(nodes_file, "n1", "0.1.0")


def test_a_drain_of_a_node_that_never_joined_is_refused(
    harness: GatewayHarness, gateway: httpx.Client
) -> None:
    harness.say(unfit("its disk is bad"), "n0")
    harness.wait(lambda: harness.tail.view().node("n0"))
    refused = gateway.post("/v1/nodes/n0/drain", json={"drain": True}, headers=bearer("admin"))
    assert (refused.status_code, refused.json()["type"]) == (
        409,
        "urn:gangline:problem:node-not-joined",
    )
    assert "n0 is unfit and has never joined" in refused.json()["detail"]
    assert "its disk is bad; and more" in refused.json()["detail"]

    unknown = gateway.post("/v1/nodes/n9/drain", json={"drain": True}, headers=bearer("admin"))
    assert (unknown.status_code, "gangline nodes" in unknown.json()["detail"]) == (404, True)
