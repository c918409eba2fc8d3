"""A client of the Kubernetes API server: JSON in, JSON out, and errors with names.

Credentials, TLS and proxies are the `kubernetes` package's. Its models are not used: a list of
10,000 pods would be parsed into a million objects.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import kubernetes.client
import kubernetes.config
import urllib3

from gangline_kube.core.resource import Object, Resource

CONNECT_S, ANSWER_S = 5.0, 30.0
WATCH_S, SILENCE_S = 240, 300.0
"""A watch ends after so many seconds, at the server and here."""
PAGE = 500
"""So many objects are asked for at once."""
_BEARER = ["BearerToken"]
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


class KubeError(Exception):
    """The API server refused a request; `status` is the one of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class NotFound(KubeError):
    """The object, or its kind, does not exist."""


class Conflict(KubeError):
    """The object exists already, or was changed since it was read."""


class Gone(KubeError):
    """The resource version is too old: list again."""


class Denied(KubeError):
    """The credentials are refused, or lack a right."""


class Unavailable(KubeError):
    """The server is away or busy: try again after `retry_s` seconds."""

    def __init__(self, status: int, message: str, retry_s: float = 1.0) -> None:
        super().__init__(status, message)
        self.retry_s = retry_s


@dataclass(frozen=True, slots=True)
class Listed:
    """Objects, and the resource version from which a watch sees what happens later."""

    items: list[Object]
    version: str


@dataclass(frozen=True, slots=True)
class Change:
    """One event of a watch. A BOOKMARK has a resource version alone."""

    kind: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    item: Object

    @property
    def version(self) -> str:
        """The resource version from which a later watch continues."""
        return str(self.item["metadata"]["resourceVersion"])


class Cluster:
    """The API server: in a pod by its service account, elsewhere by a kubeconfig.

    Each call raises KubeError. Any thread may call.
    """

    def __init__(self, kubeconfig: Path | None = None) -> None:
        configuration = kubernetes.client.Configuration()
        if kubeconfig is None and _ACCOUNT.exists():
            kubernetes.config.load_incluster_config(configuration)
        else:
            file = None if kubeconfig is None else str(kubeconfig)
            kubernetes.config.load_kube_config(file, client_configuration=configuration)
        configuration.retries = urllib3.Retry(0)  # callers know what may be done twice
        configuration.connection_pool_maxsize = 32
        self.configuration = configuration
        self._client = kubernetes.client.ApiClient(configuration)
        self._refreshing = threading.Lock()

    def list(
        self, of: Resource, namespace: str = "", *, part: Callable[[Object], Object] = dict
    ) -> Listed:
        """All objects, or those of a namespace; of each what `part` takes of it."""
        items: list[Object] = []
        query = {"limit": str(PAGE)}
        while True:
            page = self._ask("GET", of.path(namespace), query=query)
            items += map(part, page["items"])
            following = page["metadata"].get("continue")
            if not following:
                return Listed(items, str(page["metadata"]["resourceVersion"]))
            query["continue"] = following

    def watch(self, of: Resource, version: str, namespace: str = "") -> Iterator[Change]:
        """The changes after this resource version, until the server ends the stream."""
        query = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        response = self._open("GET", of.path(namespace), query, None, SILENCE_S)
        try:
            for line in _lines(response):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise _error(int(status.get("code", 500)), str(status.get("message", "")))
                yield Change(event["type"], event["object"])
        except (urllib3.exceptions.HTTPError, ValueError) as error:
            raise Unavailable(0, f"the watch broke: {type(error).__name__}") from None
        finally:
            response.close()

    def get(self, of: Resource, name: str, namespace: str = "") -> Object:
        """One object."""
        return self._ask("GET", of.path(namespace, name))

    def create(self, of: Resource, item: Object, namespace: str = "") -> Object:
        """Create an object."""
        return self._ask("POST", of.path(namespace), body=item)

    def delete(self, of: Resource, name: str, uid: str, namespace: str = "") -> Object:
        """Delete just this object; a pod has its own time to end. Raises Conflict if another is."""
        options = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "preconditions": {"uid": uid},
        }
        return self._ask("DELETE", of.path(namespace, name), body=options)

    def patch(
        self, of: Resource, name: str, change: Object, namespace: str = "", *, part: str = ""
    ) -> Object:
        """Merge a change into an object (RFC 7386), or into its part `status`.

        With `metadata.resourceVersion` in the change, it raises Conflict if the object is newer.
        """
        return self._ask("PATCH", of.path(namespace, name, part), body=change)

    def _ask(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Object:
        response = self._open(method, path, query or {}, body, ANSWER_S)
        try:
            answer: Object = json.loads(response.data)
        except (urllib3.exceptions.HTTPError, ValueError) as error:
            raise Unavailable(0, f"the answer broke: {type(error).__name__}") from None
        return answer

    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Object | None,
        silence_s: float,
    ) -> Any:
        headers = {"Accept": "application/json"}
        if body is not None:
            kind = "merge-patch+json" if method == "PATCH" else "json"
            headers["Content-Type"] = f"application/{kind}"
        with self._refreshing:  # reads a new token from its file where the old one has expired
            method, url, headers, sent, _ = self._client.param_serialize(
                method,
                path,
                query_params=list(query.items()),
                header_params=headers,
                body=body,
                auth_settings=_BEARER,
            )
        try:
            response = self._client.call_api(
                method, url, headers, sent, _request_timeout=(CONNECT_S, silence_s)
            ).response
            if 200 <= response.status <= 299:
                return response
            text = response.data
        except (kubernetes.client.ApiException, urllib3.exceptions.HTTPError) as error:
            raise Unavailable(0, f"the API server is away: {type(error).__name__}") from None
        raise _error(response.status, _message(text), response.headers.get("Retry-After"))


def _lines(response: Any) -> Iterator[bytes]:
    rest = b""
    for chunk in response.stream(amt=None, decode_content=True):
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line for line in whole if line.strip())


def _message(text: bytes) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text[:200].decode(errors="replace")


def _error(status: int, message: str, retry: str | None = None) -> KubeError:
    if status == 429 or status >= 500:
        return Unavailable(status, message, float(retry) if retry and retry.isdigit() else 1.0)
    named = {404: NotFound, 409: Conflict, 410: Gone, 401: Denied, 403: Denied}
    return named.get(status, KubeError)(status, message)
