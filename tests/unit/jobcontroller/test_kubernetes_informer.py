"""The informer and its client against a small HTTP server that fails in the ways in which API servers fail. (The real one: tests/integration.)"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from aegis_jobcontroller.kubernetes import informer as informer_module
from aegis_jobcontroller.kubernetes.client import Client, KubeError
from aegis_jobcontroller.kubernetes.informer import Informer
from aegis_jobcontroller.kubernetes.resources import PODS, Object
from aiohttp import web
from harness.waiting import until

Line = dict[str, Any]


def item(name: str, version: int, **more: Any) -> Line:
    return {"metadata": {"namespace": "ml", "name": name, "resourceVersion": str(version)}, **more}


class Server:
    """`pages` are what lists answer in turn (the last one for ever); `watches` are what each watch does."""

    def __init__(self) -> None:
        self.pages: list[tuple[int, Line]] = [(200, {"metadata": {"resourceVersion": "10"}, "items": [item("a", 5), item("b", 6)]})]
        self.watches: list[list[Line] | str] = []
        self.asked: list[dict[str, str]] = []
        self.idle = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        self.asked.append(query)
        if "watch" not in query:
            code, body = self.pages.pop(0) if len(self.pages) > 1 else self.pages[0]
            return web.json_response(body, status=code)
        response = web.StreamResponse()
        await response.prepare(request)
        does = self.watches.pop(0) if self.watches else "wait"
        if does == "cut":
            assert request.transport is not None
            request.transport.abort()
            return response
        for event in does if isinstance(does, list) else ():
            await response.write(json.dumps(event).encode() + b"\n")
        if does == "wait":
            await self.idle.wait()
        return response

    def lists(self) -> int:
        return sum("watch" not in query for query in self.asked)

    def last_watch(self) -> str:
        return next(query["resourceVersion"] for query in reversed(self.asked) if "watch" in query)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"  # type: ignore[attr-defined]
    yield made
    made.idle.set()
    await runner.cleanup()


@pytest_asyncio.fixture
async def client(server: Server, tmp_path: Path) -> AsyncIterator[Client]:
    cluster = {"server": server.url}  # type: ignore[attr-defined]
    content = {"clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "u", "user": {"token": "t"}}], "current-context": "x"}
    content["contexts"] = [{"name": "x", "context": {"cluster": "c", "user": "u"}}]
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **content}))
    made = await Client.connect(str(path))
    yield made
    await made.close()


@pytest_asyncio.fixture
async def follow(client: Client, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Informer[str]]]:
    monkeypatch.setattr(informer_module, "PAUSE", 0.01)
    tasks: list[asyncio.Task[None]] = []

    def name(found: Object) -> str | None:
        return None if found.get("other") else str(found["metadata"]["name"])

    def start(**options: Any) -> Informer[str]:
        made = Informer(client, PODS, name, lambda: None, **options)
        tasks.append(asyncio.create_task(made.run()))
        return made

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def names(of: Informer[str]) -> list[str]:
    return sorted(of.items.values())


async def test_what_is_listed_and_then_heard_is_what_is_there(server: Server, follow: Callable[..., Informer[str]]) -> None:
    removed: list[str] = []
    server.watches = [
        [
            {"type": "ADDED", "object": item("c", 11)},
            {"type": "DELETED", "object": item("a", 12)},
            {"type": "ADDED", "object": item("d", 13, other=1)},
        ]
    ]
    informer = follow(on_removed=removed.append, selector="ours")
    assert not informer.synced
    await until(lambda: names(informer) == ["b", "c"], 10)
    await until(lambda: server.last_watch() == "13", 10, "it goes on from the last version heard")
    assert (removed, server.lists()) == (["a"], 1)
    assert all(query["labelSelector"] == "ours" for query in server.asked)
    assert await informer.has(("ml", "c")) and not await informer.has(("ml", "z"), timeout=0.01)


async def test_a_connection_that_breaks_is_taken_up_where_it_ended(server: Server, follow: Callable[..., Informer[str]]) -> None:
    server.watches = [[{"type": "BOOKMARK", "object": item("", 20)}], "cut", "cut", [{"type": "ADDED", "object": item("c", 21)}]]
    informer = follow()
    await until(lambda: names(informer) == ["a", "b", "c"], 10)
    assert server.lists() == 1
    assert [query["resourceVersion"] for query in server.asked if "watch" in query][:4] == ["10", "20", "20", "20"]


@pytest.mark.parametrize("how", ["event", "status"])
async def test_a_forgotten_version_is_listed_anew_and_what_is_missing_was_removed(
    server: Server, follow: Callable[..., Informer[str]], how: str
) -> None:
    removed: list[str] = []
    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
    server.watches = [[{"type": "ERROR", "object": gone}]]
    server.pages = [*server.pages, (200, {"metadata": {"resourceVersion": "90"}, "items": [item("b", 80), item("e", 81)]})]
    if how == "status":
        first, rest = server.pages[0][1], server.pages[1]
        server.watches = []
        server.pages = [(200, {**first, "metadata": {"resourceVersion": "10", "continue": "token"}}), (410, gone), rest]
        informer = follow(on_removed=removed.append)
        await until(lambda: names(informer) == ["b", "e"], 10)
        assert removed == [], "half a list is nothing"
    else:
        informer = follow(on_removed=removed.append)
        await until(lambda: names(informer) == ["b", "e"], 10)
        assert removed == ["a"]
    assert server.lists() == (3 if how == "status" else 2)


async def test_pages_are_one_list(server: Server, follow: Callable[..., Informer[str]]) -> None:
    server.pages = [
        (200, {"metadata": {"resourceVersion": "10", "continue": "more"}, "items": [item("a", 1)]}),
        (200, {"metadata": {"resourceVersion": "10"}, "items": [item("b", 2)]}),
    ]
    informer = follow()
    await until(lambda: names(informer) == ["a", "b"], 10)
    assert server.asked[1]["continue"] == "more"


async def test_a_fault_has_the_servers_code_and_reason(server: Server, client: Client) -> None:
    server.pages = [(409, {"code": 409, "reason": "AlreadyExists", "message": "pods exists"}), (403, {"code": 403, "reason": "Forbidden"})]
    with pytest.raises(KubeError) as found:
        await client.create(PODS, "ml", item("a", 0))
    assert found.value.exists and not found.value.absent
    with pytest.raises(KubeError, match="Forbidden"):
        await client.get(PODS, "ml", "a")
    with pytest.raises(KubeError) as away:
        await (await Client.connect("/nonexistent")).get(PODS, "ml", "a")
    assert away.value.code == 0
