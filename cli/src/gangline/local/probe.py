"""Asking processes whether they are ready, beside the supervising thread and never in it."""

import http.client
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

HTTP_TIMEOUT_S = 2.0
_THREADS = 4

_log = logging.getLogger(__name__)


class Prober:
    """Runs readiness checks in a few threads; each answer is handed to a callback there."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="readiness")

    def probe(self, ready: Callable[[], bool], answer: Callable[[bool], None]) -> None:
        """Call `answer` with the outcome, in another thread; an error counts as not ready."""
        self._pool.submit(self._probe, ready, answer)

    def close(self) -> None:
        """Drop what has not begun; what runs ends by its own time limit."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    @staticmethod
    def _probe(ready: Callable[[], bool], answer: Callable[[bool], None]) -> None:
        try:
            outcome = ready()
        except Exception:  # noqa: BLE001  (any failure of a caller's check means "not ready")
            _log.debug("readiness check failed", exc_info=True)
            outcome = False
        answer(outcome)


def answers_ok(url: str, status: int = http.client.OK) -> bool:
    """Whether an http URL answers with this status now; connects directly, past any proxy."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(
        parts.hostname or "127.0.0.1", parts.port or 80, timeout=HTTP_TIMEOUT_S
    )
    try:
        connection.request("GET", parts.path or "/")
        return connection.getresponse().status == status
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
