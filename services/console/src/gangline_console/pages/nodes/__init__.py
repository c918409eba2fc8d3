"""Nodes: a table by rack with filters, and one node with its GPUs, gangs and failures."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from urllib.parse import quote

from starlette.responses import Response

from gangline_console.ordering import Ways
from gangline_console.page import Page, View
from gangline_schemas.api.cluster import Drained, Node, NodeList
from gangline_schemas.api.incidents import IncidentPage

_PAGE, _MOST_PAGES = 1000, 20
_INCIDENTS = 20
_ROWS = 300
"""Shown at first: the table of 1,250 nodes is a megabyte, and takes 0.2 s to make."""
OFF = frozenset({"draining", "cordoned", "leaving"})
ICONS = {"good": "✓", "warn": "!", "bad": "✕", "off": "‖"}


def kind(node: Node) -> str:
    """The kind of its badge: good, warn, off or bad; `health` of gpumap.js says the same."""
    return "warn" if node.straggler and node.status == "ready" else kind_of(node.status)


def kind_of(status: str) -> str:
    """The kind of a standing alone."""
    if status == "ready":
        return "good"
    return "off" if status in OFF else "warn" if status == "suspected" else "bad"


def busy(node: Node) -> float | None:
    """The mean use of its GPUs that is known, in percent."""
    found = [gpu.utilization for gpu in node.gpus if gpu.utilization is not None]
    return sum(found) / len(found) if found else None


_REVERSE = " reverse"
_VALUES: Mapping[str, Callable[[Node], float | None]] = {
    "gpus": lambda node: node.gpus_used,
    "busy": busy,
    "cpu": lambda node: node.cpu_percent,
    "memory": lambda node: node.memory_used_gb,
    "heartbeat": lambda node: None if (at := node.last_heartbeat) is None else at.timestamp(),
}
WAYS: Mapping[str, Ways] = {
    name: {name: "descending", f"{name}{_REVERSE}": "ascending"} for name in _VALUES
}
"""The orders of the table by column."""


def ordered(nodes: list[Node], order: str) -> list[Node]:
    """By an order of `WAYS`; else those that take no gangs first, then by rack."""
    name = order.removesuffix(_REVERSE)
    found = sorted(nodes, key=lambda node: (node.block, node.rack, node.node_id))
    if order not in WAYS.get(name, {}):
        return sorted(found, key=lambda node: node.status == "ready")
    sign = -1 if order == name else 1

    def place(node: Node) -> tuple[bool, float]:
        value = _VALUES[name](node)
        return value is None, sign * (value or 0.0)  # nodes that report nothing come last

    return sorted(found, key=place)


async def _all(view: View) -> list[Node]:
    found: list[Node] = []
    cursor = None
    for _ in range(_MOST_PAGES):
        page = await view.api.get("/v1/nodes", NodeList, {"limit": _PAGE, "cursor": cursor})
        found += page.nodes
        cursor = page.cursor
        if cursor is None:
            break
    return found


async def _show(view: View) -> Response:
    wanted = {name: view.query(name) for name in ("status", "rack", "text", "order")}
    every = await _all(view)
    nodes = ordered([node for node in every if _matches(node, wanted)], wanted["order"])
    counts = Counter(node.status for node in every)
    return view.render(
        "nodes/page.html",
        nodes=nodes,
        shown=nodes if view.query("all") else nodes[:_ROWS],
        every=len(every),
        wanted=wanted,
        statuses=[(name, kind_of(name), counts[name]) for name in sorted(counts)],
        racks=sorted({node.rack for node in every if node.rack}),
        gpus=sum(len(node.gpus) for node in nodes),
        used=sum(node.gpus_used for node in nodes),
        ways=WAYS,
        busy=busy,
        kind=kind,
        icons=ICONS,
    )


def _matches(node: Node, wanted: dict[str, str]) -> bool:
    text = wanted["text"].lower()
    texts = (node.node_id, node.hostname, *node.jobs, *(gpu.model for gpu in node.gpus))
    return (
        wanted["status"] in ("", node.status)
        and wanted["rack"] in ("", node.rack)
        and (not text or any(text in item.lower() for item in texts))
    )


async def _one(view: View) -> Response:
    node_id = view.path("node_id")
    node, incidents = await asyncio.gather(_node(view, node_id), _incidents(view, node_id))
    return view.render(
        "nodes/node.html",
        node=node,
        kind=kind(node),
        icons=ICONS,
        incidents=incidents,
        takes_gangs=node.status not in OFF,
        done=view.query("done"),
    )


async def _node(view: View, node_id: str) -> Node:
    return await view.api.get(f"/v1/nodes/{quote(node_id, safe='')}", Node)


async def _incidents(view: View, node_id: str) -> IncidentPage | None:
    """None while history is away, which the page says."""
    return await view.api.part(
        "/v1/incidents", IncidentPage, {"node": node_id, "limit": _INCIDENTS, "shares": False}
    )


async def _change(view: View) -> Response:
    """Drain, cordon or admit; a drain without `sure` says first which jobs must move."""
    node_id, action = view.path("node_id"), view.form.get("action")
    if action == "drain" and not view.form.get("sure"):
        return view.render("nodes/drain.html", node=await _node(view, node_id))
    await view.api.post(
        f"/v1/nodes/{quote(node_id, safe='')}/drain",
        Drained,
        {"drain": action != "admit", "move_jobs": action == "drain"},
    )
    return view.go(f"/nodes/{quote(node_id, safe='')}?done={quote(action, safe='')}")


PAGE = Page(
    "nodes", "Nodes", nav="/nodes", icon="nodes",
    get={"/nodes": _show, "/nodes/{node_id}": _one},
    post={"/nodes/{node_id}": _change},
)  # fmt: skip
