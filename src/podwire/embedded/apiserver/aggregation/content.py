"""The objects of a namespace that extension API servers keep, and their deletion with the namespace.

Source: Kubernetes' ``pkg/controller/namespace/deletion`` (``deleteAllContent``).
"""

from collections import Counter
from typing import Any
from urllib.parse import quote

import msgspec

from podwire.embedded.apiserver.aggregation.client import ExtensionClient, describe_failure
from podwire.embedded.apiserver.aggregation.extensions import Extension, Extensions
from podwire.errors import ApiError, Disconnected

Object = dict[str, Any]


class ForeignContent(msgspec.Struct):
    """The objects of a namespace that remain in extension API servers."""

    undiscovered: list[str] = []
    """Groups and versions (``GROUP/VERSION``) whose server is away."""
    remaining: Counter[str] = msgspec.field(default_factory=Counter)
    """Objects by resource."""
    finalizers: Counter[str] = msgspec.field(default_factory=Counter)
    """Objects by finalizer."""
    failures: list[str] = []

    @property
    def is_empty(self) -> bool:
        """Whether the namespace can be deleted: no object remains, and every server answered."""
        return not (self.undiscovered or self.remaining or self.failures)


class ExtensionContent:
    """Deletes objects of namespaces in extension API servers."""

    def __init__(self, extensions: Extensions, client: ExtensionClient) -> None:
        self._extensions = extensions
        self._client = client

    def __bool__(self) -> bool:
        return bool(self._extensions)

    async def delete(self, namespace: str) -> ForeignContent:
        """Deletes the objects of a namespace; returns what remains. Skips resources without the verb ``delete``."""
        content = ForeignContent([], Counter(), Counter(), [])
        for extension in tuple(self._extensions.all()):
            if not self._extensions.is_available(extension):
                content.undiscovered.append(f"{extension.group}/{extension.version}")
                continue
            for resource in self._extensions.documents(extension).resources:
                verbs = resource.get("verbs") or ()
                if resource.get("namespaced") and "/" not in str(resource.get("name", "/")) and "delete" in verbs:
                    await self._empty(extension, resource, namespace, content)
        content.undiscovered.sort()
        return content

    async def _empty(self, extension: Extension, resource: Object, namespace: str, content: ForeignContent) -> None:
        path = f"/{extension.path}/namespaces/{quote(namespace)}/{resource['name']}"
        verbs = resource["verbs"]
        try:
            if "deletecollection" in verbs:
                body = b'{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Background"}'
                await self._client.ask(extension, "DELETE", path, "application/json", body)
            items = await self._items(extension, path) if "list" in verbs else []
            if items and "deletecollection" not in verbs:
                for item in items:
                    name = quote(str(item["metadata"]["name"]))
                    await self._client.ask(extension, "DELETE", f"{path}/{name}", "application/json")
                items = await self._items(extension, path)
        except (OSError, ValueError, KeyError, TypeError, ApiError, Disconnected) as failure:
            content.failures.append(describe_failure(failure))
            return
        if items:
            content.remaining[f"{resource['name']}.{extension.group}"] += len(items)
        for item in items:
            content.finalizers.update(item["metadata"].get("finalizers") or ())

    async def _items(self, extension: Extension, path: str) -> list[Object]:
        answer = await self._client.ask(extension, "GET", path, "application/json")
        items: list[Object] = msgspec.json.decode(answer.body).get("items") or []
        return items
