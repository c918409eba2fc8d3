"""An overlay reads like a copied dict, whatever is done to it, and leaves the one below alone."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gangline_bus.overlay import Overlay
from gangline_scheduler.core.free import FreeIndex
from gangline_scheduler.core.free_node import empty_of
from gangline_scheduler.core.model import Node
from support.builders.scheduler import node

KEYS = st.integers(0, 7)
STEPS = st.lists(st.tuples(st.sampled_from(["set", "del", "pop", "default", "clear"]), KEYS))


@settings(max_examples=200)
@given(st.lists(KEYS, unique=True), STEPS, STEPS)
def test_it_is_what_a_copy_would_be(
    keys: list[int], steps: list[tuple[str, int]], later: list[tuple[str, int]]
) -> None:
    below = {key: f"below {key}" for key in keys}
    before = dict(below)
    overlay, copied = Overlay(below), dict(below)
    change(overlay, steps)
    change(copied, steps)
    same(overlay, copied)
    second = overlay.copy()
    change(second, later)
    same(overlay, copied)
    change(copied, later)
    same(second, copied)
    assert list(below.items()) == list(before.items())


def change(entries: dict[int, str], steps: list[tuple[str, int]]) -> None:
    for number, (what, key) in enumerate(steps):
        if what == "set":
            entries[key] = f"new {number}"
        elif what == "del" and key in entries:
            del entries[key]
        elif what == "pop":
            entries.pop(key, None)
        elif what == "default":
            entries.setdefault(key, "default")
        elif what == "clear" and key == 0:
            entries.clear()


def same(overlay: dict[int, str], copied: dict[int, str]) -> None:
    assert list(overlay) == list(copied)
    assert list(overlay.items()) == list(copied.items())
    assert list(overlay.values()) == list(copied.values())
    assert len(overlay) == len(copied)
    assert bool(overlay) is bool(copied)
    assert dict(overlay) == copied == overlay
    for key in range(8):
        assert (key in overlay) is (key in copied)
        assert overlay.get(key, "none") == copied.get(key, "none")


def test_a_branch_of_the_free_gpus_changes_by_itself() -> None:
    """A branch, and a copy made of it, are written while what they stand on stays as it is."""
    nodes = [
        empty_of(Node(node(f"n{number}", gpus=4, rack=f"r{number % 2}"))) for number in range(6)
    ]
    index = FreeIndex(nodes)
    branch = index.branch()
    assert branch == index
    branch.pop("n1")
    copied = branch.copy()
    copied.put(empty_of(Node(node("n9", gpus=8))))
    branch.put(nodes[0])
    assert index == FreeIndex(nodes)
    assert index.total() == 24
    assert branch.total() == 20
    assert copied.total() == 28
    assert {found.node_id for found in index.members("b1/r1")} == {"n1", "n3", "n5"}
    assert {found.node_id for found in branch.members("b1/r1")} == {"n3", "n5"}
    assert {found.node_id for found in copied.some("")} == {"n0", "n2", "n3", "n4", "n5", "n9"}
