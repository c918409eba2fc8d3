"""A Kubernetes API server in this process, over real HTTPS: what tests need of one.

`with KubeServer() as server` serves it on loopback; `server.kubeconfig(folder)` is for kubectl and
clients. It knows lists in pages, watches by resource version (410 once its history is cut),
bookmarks, create, update, and merge and JSON patches with optimistic locking. It also knows
`status` parts, finalizers, field selectors, custom resources with their schemas, and discovery.
`tests/contract/test_kube_contract.py` compares it with a real one.

Not known: bindings of pods, label selectors, admission, defaults of fields,
CEL rules, RBAC, strategic merge patches, server-side apply, tables. Bodies are JSON alone.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import secrets
import ssl
import tempfile
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from gangline.local.certificates import Authority
from support.fakes.kube_objects import Json, Kind, Refused, patched, selects
from support.fakes.kube_store import Store


class KubeServer:
    """The server, in a thread. `token` is the only credential that it takes.

    `busy`: so many requests are answered with 429. `requests`: the method and path of each.
    """

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(12)
        self.busy = 0
        self.requests: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._watches: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._run, name="kube-api", daemon=True)

    def __enter__(self) -> Self:
        with tempfile.TemporaryDirectory() as folder:
            authority = Authority(Path(folder))
            self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            self._tls.load_cert_chain(authority.issue("server"))
            self._authority = base64.b64encode(authority.path.read_bytes()).decode()
        self._thread.start()
        assert self._ready.wait(10)
        for name in ("default", "kube-system"):
            self.do(lambda name=name: self.add("namespaces", {"metadata": {"name": name}}))
        return self

    def __exit__(self, *_: object) -> None:
        self.break_watches()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def do(self, work: Callable[[], Any]) -> Any:
        """Run something in the server's thread: tests read and change objects so."""

        async def now() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(now(), self._loop).result(10)

    def add(self, plural: str, item: Json, namespace: str = "", group: str = "") -> Json:
        """Create an object; in the server's thread."""
        return self.store.create(self.store.kind(group, plural), namespace, item, strict=True)

    def objects(self, plural: str, group: str = "") -> list[Json]:
        """Copies of all objects of a kind."""
        kind = self.store.kind(group, plural)
        return list(self.do(lambda: copy.deepcopy(list(kind.objects.values()))))

    def cut_history(self) -> None:
        """Forget what happened so far: watches from older versions get 410."""

        def cut() -> None:
            self.store.oldest = self.store.version
            self.store.history.clear()

        self.do(cut)

    def break_watches(self) -> None:
        """End all watches in the middle."""
        self.do(lambda: [task.cancel() for task in self._watches])

    def go_away(self) -> None:
        """End all connections, and take no new ones. Objects stay, and `do` still works."""

        async def close() -> None:
            await self._site.stop()
            for connection in (self._runner.server and self._runner.server.connections) or ():
                connection.force_close()

        asyncio.run_coroutine_threadsafe(close(), self._loop).result(10)

    def come_back(self) -> None:
        """Listen at the same address again."""
        port = int(self.url.rpartition(":")[2])
        asyncio.run_coroutine_threadsafe(self._listen(port), self._loop).result(10)

    def kubeconfig(self, folder: Path) -> Path:
        """A kubeconfig of an administrator."""
        path = folder / "kubeconfig"
        cluster = {"server": self.url, "certificate-authority-data": self._authority}
        made = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": self.token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
            "current-context": "test",
        }
        path.write_text(json.dumps(made), encoding="utf-8")
        return path

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._runner.cleanup())
        self._loop.run_until_complete(asyncio.sleep(0))  # connections of watches close
        self._loop.close()

    async def _start(self) -> None:
        self.store = Store()
        self._pages: dict[str, tuple[Json, list[Json]]] = {}
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/version", self._version)
        app.router.add_get("/api", self._versions)
        app.router.add_get("/apis", self._groups)
        app.router.add_get("/api/v1", self._resources)
        app.router.add_get("/apis/{group}/{version}", self._resources)
        for root in ("/api/{version}", "/apis/{group}/{version}"):
            for spaced in ("/namespaces/{namespace}", ""):
                for rest in ("/{plural}", "/{plural}/{name}", "/{plural}/{name}/{part}"):
                    app.router.add_route("*", root + spaced + rest, self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await self._listen(0)
        address = self._runner.addresses[0]
        self.url = f"https://127.0.0.1:{address[1]}"

    async def _listen(self, port: int) -> None:
        self._site = web.TCPSite(self._runner, "127.0.0.1", port, ssl_context=self._tls)
        await self._site.start()

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path}")
        try:
            if request.headers.get("Authorization") != f"Bearer {self.token}":
                raise Refused(401, "Unauthorized")
            if self.busy > 0:
                self.busy -= 1
                raise Refused(429, "too many requests, please try again later")
            return await handler(request)
        except Refused as refused:
            headers = {"Retry-After": "0"} if refused.status == 429 else {}
            return web.json_response(refused.body(), status=refused.status, headers=headers)

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"major": "1", "minor": "37", "gitVersion": "v1.37.2"})

    async def _versions(self, _: web.Request) -> web.Response:
        return web.json_response({"kind": "APIVersions", "versions": ["v1"]})

    async def _groups(self, _: web.Request) -> web.Response:
        named = {kind.group: kind for kind in self.store.kinds.values() if kind.group}
        groups = []
        for name, kind in named.items():
            version = {"groupVersion": kind.api_version, "version": kind.version}
            groups.append({"name": name, "versions": [version], "preferredVersion": version})
        return web.json_response({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})

    async def _resources(self, request: web.Request) -> web.Response:
        group = request.match_info.get("group", "")
        kinds = [kind for kind in self.store.kinds.values() if kind.group == group]
        if not kinds:
            raise Refused(404, "the server could not find the requested resource")
        found = [entry for kind in kinds for entry in kind.discovered()]
        return web.json_response(
            {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": kinds[0].api_version,
                "resources": found,
            }
        )

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        at = request.match_info
        namespace, name = at.get("namespace", ""), at.get("name", "")
        kind = self.store.kind(at.get("group", ""), at["plural"])
        strict = request.query.get("fieldValidation") == "Strict"
        if not name:
            if request.method == "POST":
                item = await request.json()
                made = self.store.create(kind, namespace, item, strict=strict)
                return web.json_response(made, status=201)
            if request.query.get("watch") in {"1", "true"}:
                return await self._watch(request, kind, namespace)
            return web.json_response(self._listed(request, kind, namespace))
        item, part = self.store.get(kind, namespace, name), at.get("part", "")
        if part and part not in kind.parts:
            raise Refused(404, "the server could not find the requested resource")
        return web.json_response(await self._one(request, kind, item, part, strict=strict))

    async def _one(
        self, request: web.Request, kind: Kind, item: Json, part: str, *, strict: bool
    ) -> Json:
        """The answer about one object: read, deleted or changed."""
        if request.method == "GET":
            return item
        text = await request.text()
        if request.method == "DELETE":
            return self.store.delete(kind, item, json.loads(text or "{}"))
        new = json.loads(text)
        if request.method == "PATCH":
            new = patched(copy.deepcopy(item), new, request.content_type)
        return self.store.update(kind, item, new, part, strict=strict)

    def _listed(self, request: web.Request, kind: Kind, namespace: str) -> Json:
        following = request.query.get("continue")
        if following is None:
            items = [item for item in kind.objects.values() if _asked(request, namespace, item)]
            metadata = {"resourceVersion": str(self.store.version)}
        elif following in self._pages:
            metadata, items = self._pages.pop(following)
        else:
            raise Refused(410, "The provided continue parameter is too old")
        answer = {"kind": f"{kind.kind}List", "apiVersion": kind.api_version}
        limit = int(request.query.get("limit", "0")) or len(items)
        if len(items) <= limit:
            return {**answer, "metadata": metadata, "items": items}
        token = secrets.token_hex(8)
        self._pages[token] = metadata, items[limit:]
        return {**answer, "metadata": {**metadata, "continue": token}, "items": items[:limit]}

    async def _watch(self, request: web.Request, kind: Kind, namespace: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        task = asyncio.ensure_future(self._send(response, request, kind, namespace))
        self._watches.add(task)
        try:
            await task
        except asyncio.CancelledError:
            if request.transport is not None:
                request.transport.abort()
        except ConnectionResetError:
            pass
        finally:
            self._watches.discard(task)
        return response

    async def _send(
        self, response: web.StreamResponse, request: web.Request, kind: Kind, namespace: str
    ) -> None:
        async def send(event: str, item: Json) -> None:
            await response.write(json.dumps({"type": event, "object": item}).encode() + b"\n")

        at = int(request.query.get("resourceVersion") or self.store.version)
        end = self._loop.time() + float(request.query.get("timeoutSeconds", "600"))
        while self._loop.time() < end:
            news = self.store.news
            try:
                events = self.store.since(at, kind)
            except Refused as refused:
                await send("ERROR", refused.body())
                return
            at = self.store.version
            for event, item in events:
                if _asked(request, namespace, item):
                    await send(event, item)
            left_s = end - self._loop.time()
            try:
                await asyncio.wait_for(news.wait(), max(0.0, left_s))
            except TimeoutError:
                break
        if request.query.get("allowWatchBookmarks") == "true":
            bare = {"kind": kind.kind, "apiVersion": kind.api_version}
            await send("BOOKMARK", {**bare, "metadata": {"resourceVersion": str(at)}})


def _asked(request: web.Request, namespace: str, item: Json) -> bool:
    if namespace and item["metadata"].get("namespace") != namespace:
        return False
    query = request.query
    return selects(query.get("fieldSelector", ""), item)
