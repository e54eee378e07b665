"""Applies manifests to the API.

The resource of a kind is looked up by discovery, with one request per group and version. When a kind is missing, the
request is repeated once, because its definition may just have been created. Objects are applied server-side, so a
second ``podwire up -f`` with the same files changes nothing. Objects of one rank are applied in parallel, after all
objects of lower ranks such as namespaces.
"""

import asyncio
from collections.abc import Sequence
from itertools import groupby
from typing import Any
from urllib.parse import quote

import msgspec

from podwire.errors import ConfigError
from podwire.kube.client import APPLY_PATCH, Client
from podwire.kube.decode import decode_failure
from podwire.kube.resources import Json, Resource
from podwire.local.manifesterrors import refused
from podwire.local.manifests import Manifest, rank

MANAGER = "podwire-up"
_AT_ONCE = 16


class Kinds:
    """The kinds that an API server knows."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[str, dict[str, Resource[Json]]] = {}
        self._asking: dict[str, asyncio.Lock] = {}

    async def resource(self, manifest: Manifest) -> Resource[Json]:
        """The resource of a manifest's kind.

        Raises: ConfigError when the API server does not know it.
        """
        version, kind = str(manifest.body["apiVersion"]), manifest.kind
        async with self._asking.setdefault(version, asyncio.Lock()):
            resource_kind = (await self._of(version)).get(kind)
            if resource_kind is None:
                self._known.pop(version, None)
                resource_kind = (await self._of(version)).get(kind)
        if resource_kind is None:
            raise ConfigError(manifest.source, "kind", f"the API server knows no {kind} in {version}")
        return resource_kind

    async def _of(self, version: str) -> dict[str, Resource[Json]]:
        if version in self._known:
            return self._known[version]
        path = f"/apis/{quote(version)}" if "/" in version else f"/api/{quote(version)}"
        answer = await self._client.raw("GET", path)
        listed: list[dict[str, Any]] = []
        if answer.status == 200:
            listed = msgspec.json.decode(answer.body).get("resources", [])
        elif answer.status != 404:
            raise decode_failure(answer.status, answer.body)
        group, _, number = version.rpartition("/")
        self._known[version] = {
            entry["kind"]: Resource(group, number, entry["name"], entry["kind"], entry["namespaced"], dict)
            for entry in listed
            if "/" not in entry["name"]
        }
        return self._known[version]


async def apply(client: Client, manifests: Sequence[Manifest], namespace: str = "default") -> list[Json]:
    """Applies all objects, those that others need first; returns them as stored, in that order.

    Raises: ConfigError naming file and line of the first that is refused; the others of its rank are applied.
    """
    kinds = Kinds(client)
    applied: list[Json] = []
    for _, group in groupby(sorted(manifests, key=rank), key=rank):
        gate = asyncio.Semaphore(_AT_ONCE)
        answers = await asyncio.gather(*(_apply(client, kinds, m, namespace, gate) for m in group))
        applied.extend(answers)
    return applied


async def _apply(client: Client, kinds: Kinds, manifest: Manifest, namespace: str, gate: asyncio.Semaphore) -> Json:
    async with gate:
        resource = await kinds.resource(manifest)
        meta = manifest.body["metadata"]
        place = (meta.get("namespace") or namespace) if resource.namespaced else ""
        if "name" not in meta:
            raise ConfigError(manifest.source, "metadata.name", "expected a name: generateName cannot be applied")
        query = {"fieldManager": MANAGER, "force": "true", "fieldValidation": "Strict"}
        headers = {"content-type": APPLY_PATCH}
        body = msgspec.json.encode(manifest.body)
        answer = await client.raw("PATCH", resource.path(place, meta["name"]), query, body, headers)
        if answer.status >= 400:
            raise refused(manifest, decode_failure(answer.status, answer.body))
        written: Json = msgspec.json.decode(answer.body)
        return written
