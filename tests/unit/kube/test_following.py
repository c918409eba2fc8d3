"""A server that ends each watch is not asked without a pause."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import cast

import pytest

from gangline_kube.core.resource import PODS
from gangline_kube.service.api import Change, Cluster, Gone, Listed
from gangline_kube.service.following import LONGEST_PAUSE_S, Followed


class Pauses(threading.Event):
    """Notes each pause, and ends after `most`."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.noted: list[float] = []
        self._most = most

    def wait(self, timeout: float | None = None) -> bool:
        self.noted.append(timeout or 0.0)
        return len(self.noted) > self._most


class Watches:
    """An API server whose watches last so long each, and then end or are gone."""

    def __init__(self, lasting_s: list[float], *, gone: bool) -> None:
        self._lasting_s, self._gone = lasting_s, gone
        self.now_s = 0.0

    def list(self, *_: object, **__: object) -> Listed:
        self.now_s += 5  # of many objects
        return Listed([], "1")

    def watch(self, *_: object) -> Iterator[Change]:
        self.now_s += self._lasting_s.pop(0)
        if self._gone:
            raise Gone(410, "too old resource version")
        yield from ()


@pytest.mark.parametrize("gone", [True, False])
def test_watches_that_end_at_once_are_opened_ever_more_rarely(*, gone: bool) -> None:
    api, pauses = Watches([0.0] * 8 + [240.0, 0.0, 0.0], gone=gone), Pauses(11)
    followed = Followed(cast("Cluster", api), PODS, pauses, dict, clock=lambda: api.now_s)
    followed.run()
    quick = [1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    assert pauses.noted == [0.0, 0.0, *quick, 0.0, 0.0, 1.0]
