"""The published releases: the list that says which agents are accepted."""

from __future__ import annotations

import pytest

from gangline_schemas import generate
from gangline_schemas.features import RELEASE, RELEASES, is_older, oldest_accepted


@pytest.mark.parametrize(
    ("releases", "oldest"),
    [
        ((), None),
        (("0.1.0", "0.2.0"), None),
        (("0.1.0", "0.2.0", "0.3.0"), "0.1.0"),
        (("0.1.0", "0.2.0", "0.3.0", "1.0.0"), "0.2.0"),
    ],
)
def test_agents_of_the_three_newest_releases_are_accepted(
    releases: tuple[str, ...], oldest: str | None
) -> None:
    assert oldest_accepted(releases) == oldest


def test_each_published_release_is_in_the_list() -> None:
    """The schemas of a release are published with it, so they say which releases there are."""
    assert set(RELEASES) == {path.stem for path in generate.PUBLISHED.glob("*.json")}, (
        "append the release to RELEASES: see 'A release' in docs/guides/upgrades.md"
    )


def test_the_list_is_in_order_and_no_release_is_newer_than_this_one() -> None:
    pairs = zip(RELEASES, [*RELEASES[1:], RELEASE], strict=True)
    assert not any(is_older(later, earlier) for earlier, later in pairs)
    assert len(set(RELEASES)) == len(RELEASES)


@pytest.mark.parametrize("release", ["0.2.9", "0.2", "dev", "0.4.0rc1", None])
def test_releases_that_come_before(release: str | None) -> None:
    assert is_older(release, "0.3.0")


@pytest.mark.parametrize("release", ["0.3.0", "0.3.1", "0.10.0", "1"])
def test_releases_that_do_not(release: str) -> None:
    assert not is_older(release, "0.3.0")
