"""Connections that showed no token end before others, and a user has its share."""

from __future__ import annotations

from gangline_service.connections import ConnectionLimits, Connections


class Line:
    """One connection."""

    def __init__(self, *, idle: bool = True) -> None:
        self.idle = idle
        self.ended = False

    def end(self) -> None:
        self.ended = True


def opened(pool: Connections, peer: str, count: int) -> list[Line]:
    lines = [Line() for _ in range(count)]
    for line in lines:
        pool.opened(line, peer)
    return lines


def test_a_peer_that_opens_too_many_ends_its_own_oldest() -> None:
    pool = Connections(ConnectionLimits(unproven=8))
    quiet = opened(pool, "10.0.0.1", 2)
    greedy = opened(pool, "10.0.0.2", 20)
    assert not any(line.ended for line in quiet)
    assert [line.ended for line in greedy] == [True] * 14 + [False] * 6


def test_a_proven_connection_never_makes_room_for_unproven_ones() -> None:
    pool = Connections(ConnectionLimits(unproven=4))
    (mine,) = opened(pool, "10.0.0.2", 1)
    assert pool.prove(mine, "ada")
    greedy = opened(pool, "10.0.0.2", 50)
    assert not mine.ended
    assert sum(not line.ended for line in greedy) == 4


def test_a_user_has_its_share_and_idle_ones_make_room() -> None:
    pool = Connections(ConnectionLimits(per_user=2))
    lines = [Line(idle=False), Line(idle=True), Line(), Line()]
    for line in lines:
        pool.opened(line, "10.0.0.1")
    assert pool.prove(lines[0], "ada")
    assert pool.prove(lines[1], "ada")
    assert pool.prove(lines[2], "ada"), "the idle one makes room"
    assert [line.ended for line in lines] == [False, True, False, False]
    lines[2].idle = False
    assert not pool.prove(lines[3], "ada")
    assert pool.prove(lines[3], "bob")


def test_what_has_ended_counts_no_more() -> None:
    pool = Connections(ConnectionLimits(unproven=2, proven=1, per_user=1))
    first, second = opened(pool, "10.0.0.1", 2)
    first.idle = second.idle = False
    assert pool.prove(first, "ada")
    assert not pool.prove(second, "bob"), "all have too many"
    pool.closed(first)
    assert pool.prove(second, "bob")
    assert not any(line.ended for line in opened(pool, "10.0.0.1", 2))


def test_a_connection_that_serves_several_users_counts_once() -> None:
    """As one of a proxy does."""
    pool = Connections(ConnectionLimits(per_user=1))
    (line,) = opened(pool, "10.0.0.1", 1)
    line.idle = False
    assert pool.prove(line, "ada")
    assert pool.prove(line, "ada")
    assert pool.prove(line, "bob")
    (other,) = opened(pool, "10.0.0.1", 1)
    assert pool.prove(other, "ada")
