"""The API server behind six verbs: get, list, create, patch, delete, watch. Objects are plain JSON.

kubernetes_asyncio gives what is hard to do right by oneself: kubeconfig files, service accounts with tokens that rotate, exec plug-ins, TLS. Of its
thousands of generated classes nothing is used. One kind of error leaves here, with the server's own code and reason.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
from kubernetes_asyncio import config as kube_config
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.client.exceptions import ApiException

from aegis_jobcontroller.kubernetes.resources import Object, Resource

TIMEOUT = 20.0
"""Seconds that one request may take; a watch says how long it is to last."""
JSON, MERGE, JSON_PATCH = "application/json", "application/merge-patch+json", "application/json-patch+json"


class KubeError(Exception):
    """`code`: HTTP status, 0 when the server could not be reached. `reason`: the server's word (AlreadyExists, Conflict, Expired, Forbidden ...)."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code or 'unreachable'} {reason}: {message}")
        self.code, self.reason, self.message = code, reason, message

    @property
    def absent(self) -> bool:
        return self.code == 404

    @property
    def exists(self) -> bool:
        return self.code == 409 and self.reason == "AlreadyExists"

    @property
    def expired(self) -> bool:
        """The resource version is older than what the server remembers: list again."""
        return self.code == 410


class Client:
    """`await Client.connect(path)`; `await close()`. Every method raises KubeError and nothing else."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    @classmethod
    async def connect(cls, kubeconfig: str = "") -> Client:
        """With `kubeconfig` (a path), or as the service account of this pod. KubeError when neither can be read; the server is not asked yet."""
        settings = Configuration()
        try:
            if kubeconfig:
                await kube_config.load_kube_config(kubeconfig, client_configuration=settings)
            else:
                kube_config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
        except (kube_config.ConfigException, OSError, ValueError) as error:
            raise KubeError(0, "Configuration", f"{kubeconfig or 'service account'}: {error}") from None
        return cls(ApiClient(settings))

    async def close(self) -> None:
        await self._api.close()

    async def get(self, resource: Resource, namespace: str, name: str) -> Object:
        return await self._json("GET", resource.path(namespace, name))

    async def list(self, resource: Resource, namespace: str = "", **query: str) -> Object:
        """One page: `items`, and in `metadata` the `resourceVersion` and, when there is more, `continue`."""
        return await self._json("GET", resource.path(namespace), query)

    async def create(self, resource: Resource, namespace: str, body: Object, **query: str) -> Object:
        """`dryRun="All"`: everything is checked, nothing is stored."""
        return await self._json("POST", resource.path(namespace), query, body=body)

    async def patch(self, resource: Resource, namespace: str, name: str, body: Object, sub: str = "") -> Object:
        """RFC 7396: what `body` names is replaced, null removes. A `metadata.resourceVersion` in it makes a stale patch a Conflict."""
        return await self._json("PATCH", resource.path(namespace, name, sub), body=body, content=MERGE)

    async def replace_status(self, resource: Resource, namespace: str, name: str, status: Object) -> None:
        """The status as a whole (RFC 6902): what it does not say is not there any more."""
        body = [{"op": "add", "path": "/status", "value": status}]
        await self._json("PATCH", resource.path(namespace, name, "status"), body=body, content=JSON_PATCH)

    async def delete(self, resource: Resource, namespace: str, name: str, grace: float | None = None, uid: str = "") -> None:
        """`grace` 0 = by force. `uid`: only this very object. An absent one is deleted already."""
        options: dict[str, Any] = {"propagationPolicy": "Background"}
        if grace is not None:
            options["gracePeriodSeconds"] = int(grace)
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            await self._json("DELETE", resource.path(namespace, name), body=options)
        except KubeError as error:
            if not error.absent and not (error.code == 409 and uid):
                raise

    async def watch(self, resource: Resource, namespace: str, seconds: float, **query: str) -> AsyncIterator[tuple[str, Object]]:
        """(type, object) until the server ends it, after `seconds` at the latest. A connection that died quietly is given up a little later."""
        query |= {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(int(seconds))}
        timeout = aiohttp.ClientTimeout(total=seconds + 10, sock_connect=TIMEOUT)
        try:
            response = await self._request("GET", resource.path(namespace), query, timeout=timeout)
            try:
                if response.status >= 300:
                    raise _error(response.status, await response.read())
                async for line in response.content:
                    event = json.loads(line)
                    yield str(event["type"]), event["object"]
            finally:
                response.close()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError) as error:
            raise KubeError(0, type(error).__name__, str(error)) from None

    async def _json(self, method: str, path: str, query: Mapping[str, str] | None = None, body: Any = None, content: str = JSON) -> Object:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT)
        try:
            response = await self._request(method, path, dict(query or {}), body=body, content=content, timeout=timeout)
            data = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise KubeError(0, type(error).__name__, str(error)) from None
        if response.status >= 300:
            raise _error(response.status, data)
        try:
            return dict(json.loads(data))
        except ValueError:
            raise KubeError(0, "NotJSON", f"{method} {path}") from None

    async def _request(
        self, method: str, path: str, query: dict[str, str], *, body: Any = None, content: str = JSON, timeout: aiohttp.ClientTimeout
    ) -> Any:
        headers = {"Accept": "application/json", "Content-Type": content}
        try:
            return await self._api.call_api(
                path,
                method,
                query_params=list(query.items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=timeout,
            )
        except ApiException as error:
            raise KubeError(int(error.status or 0), str(error.reason), "") from None
        except asyncio.CancelledError:
            raise
        except (aiohttp.ClientError, TimeoutError, OSError):
            raise
        except Exception as error:  # a token plug-in of the kubeconfig may raise anything
            raise KubeError(0, type(error).__name__, str(error)) from None


def _error(code: int, data: bytes) -> KubeError:
    """The Status object that the server answers with."""
    try:
        status = json.loads(data)
        return KubeError(int(status.get("code") or code), str(status.get("reason") or ""), str(status.get("message") or "")[:1000])
    except (ValueError, AttributeError):
        return KubeError(code, "", data[:300].decode("utf-8", "replace"))
