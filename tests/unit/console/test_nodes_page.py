"""Nodes and the overview: what is asked of REST, who may change a node, and what a drain costs."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import BaseModel

from gangline_schemas.api.alerts import AlertList
from gangline_schemas.api.cluster import Drained, Node, NodeList, Queue, Whoami
from gangline_schemas.api.incidents import IncidentPage
from gangline_schemas.api.jobs import JobPage
from support.builders.console import console, csrf, node
from support.fakes.console_gateway import problem

NO_INCIDENTS = IncidentPage.model_validate({
    "incidents": [], "notices": [], "cursor": None,
    "totals": {
        "incidents": 0, "recovered": 0, "recover_median_s": None, "recover_p95_s": None,
        "lost_gpu_s": 0, "by_class": [], "by_node": [], "by_job": [], "by_shard": [],
    },
})  # fmt: skip


def one(found: Node, role: str = "admin", **more: BaseModel | Exception) -> Any:
    return console(
        {
            f"GET /v1/nodes/{found.node_id}": found,
            "GET /v1/incidents": NO_INCIDENTS,
            "GET /v1/whoami": Whoami(name="ana", role=role, teams=[]),
            f"POST /v1/nodes/{found.node_id}/drain": Drained(node_id="n-1", status="draining"),
            **more,
        }
    )


def test_many_nodes_are_shown_in_part_until_all_are_asked_for() -> None:
    many = NodeList(nodes=[node(node_id=f"n-{number:03}", rack="r-7") for number in range(301)])
    client, _ = console({"GET /v1/nodes": many})

    first = client.get("/console/nodes?rack=r-7").text

    assert "301 nodes" in first
    assert ('data-node="n-299"' in first, 'data-node="n-300"' in first) == (True, False)
    assert "/console/nodes?rack=r-7&amp;all=1" in first
    assert 'data-node="n-300"' in client.get("/console/nodes?rack=r-7&all=1").text


def test_the_table_shows_the_mean_of_the_gpus_that_are_known() -> None:
    client, _ = console({"GET /v1/nodes": NodeList(nodes=[node()])})

    text = client.get("/console/nodes").text

    for shown in ("n-1", "b-2 / r-7", "4 of 4 h100", "80 %", "31 %", "100 of 512 GB", "llama-1"):
        assert shown in text, shown


@pytest.mark.parametrize(
    ("query", "shown"),
    [("text=N-2", {"n-2"}), ("status=failed", {"n-2"}), ("rack=r-7", {"n-1"}), ("text=x9", set())],
)
def test_filters(query: str, shown: set[str]) -> None:
    nodes = NodeList(nodes=[node(), node(node_id="n-2", status="failed", rack="r-8", jobs=[])])
    client, _ = console({"GET /v1/nodes": nodes})

    text = client.get(f"/console/nodes?{query}").text

    assert {name for name in ("n-1", "n-2") if f'data-node="{name}"' in text} == shown
    assert ("No node matches" in text) == (not shown)


def test_nodes_that_take_no_gangs_come_first_and_each_standing_is_counted() -> None:
    failed = [node(node_id=f"z-{number}", status="failed", rack="r-9") for number in range(2)]
    client, _ = console({"GET /v1/nodes": NodeList(nodes=[node(), *failed])})

    text = client.get("/console/nodes").text

    assert text.index('data-node="z-1"') < text.index('data-node="n-1"')
    key = text[text.index('href="/console/nodes?status=failed"') :]
    assert '<span class="num">2</span>' in key[: key.index("</a>")]


def test_a_click_on_a_head_orders_nodes_and_those_without_a_value_come_last() -> None:
    loads = {"n-1": 10.0, "n-2": None, "n-3": 90.0}
    nodes = [node(node_id=name, cpu_percent=load) for name, load in loads.items()]
    client, _ = console({"GET /v1/nodes": NodeList(nodes=nodes)})

    text = client.get("/console/nodes?order=cpu").text

    assert re.findall(r'data-node="(n-\d)"', text) == ["n-3", "n-1", "n-2"]
    assert 'href="/console/nodes?order=cpu+reverse">CPU ↓</a>' in text


def test_an_installation_without_nodes_says_how_to_get_one() -> None:
    client, _ = console({"GET /v1/nodes": NodeList(nodes=[])})

    assert "gangline node join" in client.get("/console/nodes").text


def test_only_an_admin_sees_the_buttons_that_change_a_node() -> None:
    assert "Drain…" in one(node())[0].get("/console/nodes/n-1").text
    assert "Drain…" not in one(node(), role="member")[0].get("/console/nodes/n-1").text
    drained = one(node(status="cordoned"))[0].get("/console/nodes/n-1").text
    assert "Admit" in drained
    assert "Drain…" not in drained


def test_a_drain_names_the_jobs_before_it_asks_rest() -> None:
    client, gateway = one(node())

    asked = client.post("/console/nodes/n-1", data={"csrf": csrf(), "action": "drain"})
    assert "llama-1" in asked.text
    assert not any(item[0].startswith("POST") for item in gateway.asked)

    done = client.post("/console/nodes/n-1", data={"csrf": csrf(), "action": "drain", "sure": "1"})
    assert done.headers["location"] == "/console/nodes/n-1?done=drain"
    assert gateway.asked[-1][2] == {"drain": True, "move_jobs": True}


@pytest.mark.parametrize(
    ("action", "body"),
    [
        ("cordon", {"drain": True, "move_jobs": False}),
        ("admit", {"drain": False, "move_jobs": False}),
    ],
)
def test_cordon_and_admit(action: str, body: dict[str, bool]) -> None:
    client, gateway = one(node())

    client.post("/console/nodes/n-1", data={"csrf": csrf(), "action": action})

    assert gateway.asked[-1][2] == body


def test_a_node_is_shown_while_history_is_away() -> None:
    away = problem(503, "history-away", "history does not answer")
    client, _ = one(node(why="<b>fans</b>"), **{"GET /v1/incidents": away})

    text = client.get("/console/nodes/n-1").text

    assert "history is away" in text
    assert "&lt;b&gt;fans" in text


def test_the_overview_is_shown_while_parts_are_away() -> None:
    away = problem(503, "away", "does not answer")
    client, _ = console(
        {
            "GET /v1/training-jobs": JobPage(jobs=[], cursor=None),
            "GET /v1/queue": away,
            "GET /v1/alerts": AlertList(alerts=[]),
            "GET /v1/incidents": away,
        }
    )

    text = client.get("/console/overview?by=team").text

    assert "The queue cannot be read now." in text
    assert "No alert is firing." in text
    assert 'data-by="team"' in text


def test_the_overview_names_what_waits() -> None:
    queue = Queue.model_validate({
        "queue": [{
            "position": 3, "job_id": "j-1", "name": "big", "team": "nlp", "user": "ana",
            "priority": 50, "gpus": 64, "score": 0.5, "waiting_since": None, "waited_s": 3.0,
            "waiting": None,
        }],
        "pending_jobs": 9, "pending_gpus": 512,
    })  # fmt: skip
    client, _ = console(
        {
            "GET /v1/training-jobs": JobPage(jobs=[], cursor=None),
            "GET /v1/queue": queue,
            "GET /v1/alerts": AlertList(alerts=[]),
            "GET /v1/incidents": NO_INCIDENTS,
        }
    )

    text = client.get("/console/overview").text

    assert "All 9 that wait" in text
    assert "512 GPUs" in text
