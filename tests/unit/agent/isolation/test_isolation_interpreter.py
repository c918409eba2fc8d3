"""The way to an interpreter: every link of it is found, and nothing beside it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gangline_worker.agent.isolation.interpreter import (
    LINKS,
    closed_above,
    follow,
    interpreter_places,
    places_of,
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """An environment whose `python` is a link to a link in a private folder, and so on."""
    root = tmp_path.resolve()
    real = root / "versions" / "3.11.7" / "bin"
    for folder in (root / "env" / "bin", root / "private" / "bin", root / "private" / "own", real):
        folder.mkdir(parents=True)
    (real / "python3.11").touch()
    (real / "python3").symlink_to("python3.11")
    (root / "versions" / "3.11").symlink_to("3.11.7")
    (root / "private" / "bin" / "python3").symlink_to("../../versions/3.11/bin/python3")
    (root / "env" / "bin" / "python").symlink_to(root / "private" / "bin" / "python3")
    return root


def test_each_link_of_a_chain_is_found_also_of_folders_in_turn(tree: Path) -> None:
    real, links = follow(tree / "env" / "bin" / "python")
    assert real == tree / "versions" / "3.11.7" / "bin" / "python3.11"
    assert links == [
        tree / "env" / "bin" / "python",
        tree / "private" / "bin" / "python3",
        tree / "versions" / "3.11",
        tree / "versions" / "3.11.7" / "bin" / "python3",
    ]


def test_what_is_found_lies_in_its_trees_or_is_a_link_and_nothing_more(tree: Path) -> None:
    named = [tree / "versions" / "3.11", tree / "env", tree / "env" / "bin" / "python"]
    assert places_of(named) == [
        tree / "env",
        tree / "private" / "bin" / "python3",
        tree / "versions" / "3.11",
        tree / "versions" / "3.11.7",
    ]


def test_an_executable_outside_of_all_trees_is_found_alone(tree: Path) -> None:
    found = places_of([tree / "env", tree / "env" / "bin" / "python"])
    assert tree / "versions" / "3.11.7" / "bin" / "python3.11" in found
    assert tree / "versions" / "3.11.7" / "bin" not in found


def test_a_loop_of_links_is_named(tree: Path) -> None:
    (tree / "one").symlink_to("two")
    (tree / "two").symlink_to(tree / "one")
    with pytest.raises(OSError, match=rf"loop of them at {tree}/(one|two), from {tree}/one"):
        follow(tree / "one")


def test_as_many_links_are_followed_as_the_system_follows(tree: Path) -> None:
    for number in range(LINKS):
        (tree / f"{number}").symlink_to(f"{number + 1}")
    last = tree / f"{LINKS}"
    last.touch()
    assert (tree / "0").exists(), "the system follows as many"
    assert follow(tree / "0")[0] == last
    (tree / "more").symlink_to("0")
    with pytest.raises(OSError, match="Too many levels"):
        (tree / "more").stat()
    with pytest.raises(OSError, match="too many links"):
        follow(tree / "more")


def test_folders_that_others_cannot_pass_through_are_named(tree: Path) -> None:
    (tree / "private").chmod(0o700)
    (tree / "versions").chmod(0o744)
    ours = {*closed_above(places_of([tree / "env" / "bin" / "python"]))} - {*tree.parents, tree}
    assert ours == {tree / "private", tree / "versions"}


def test_this_interpreter_is_all_there() -> None:
    places = interpreter_places()
    real, links = follow(Path(sys.executable))
    for path in (real, *links, Path(pytest.__file__).resolve()):
        assert any(path.is_relative_to(place) for place in places), path
