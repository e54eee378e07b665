"""The record of a run as keys of a ConfigMap, so that another process can continue it."""

from collections.abc import Mapping
from typing import Any

from podwire.errors import NotFound
from podwire.kube.client import Client
from podwire.kube.resources import CONFIGMAPS


class ConfigRecord:
    """One ConfigMap; it is created by the first write."""

    def __init__(self, client: Client, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name

    async def read(self) -> Mapping[str, Any]:
        """The keys and values; empty without the ConfigMap."""
        try:
            body = await self._client.get(CONFIGMAPS, self._name, self._namespace)
        except NotFound:
            return {}
        return body.get("data") or {}

    async def write(self, data: Mapping[str, str | None]) -> None:
        """Writes keys; a key with None is removed, and further keys stay."""
        values = {key: value for key, value in data.items() if value is not None}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": self._name}, "data": values}
        try:
            await self._client.patch(CONFIGMAPS, self._name, {"data": dict(data)}, self._namespace)
        except NotFound:
            await self._client.create(CONFIGMAPS, body, self._namespace)

    async def delete(self) -> None:
        """Deletes the ConfigMap."""
        try:
            await self._client.delete(CONFIGMAPS, self._name, self._namespace)
        except NotFound:
            pass
