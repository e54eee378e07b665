"""Writes the planned changes of slices."""

import msgspec

from podwire.controllers.endpointslice.plan import SliceChanges
from podwire.errors import NotFound
from podwire.kube.client import Client
from podwire.kube.ownwrites import OwnWrites
from podwire.kube.resources import ENDPOINTSLICES
from podwire.model.service import EndpointSlice


async def write(client: Client, own: OwnWrites, key: str, changes: SliceChanges) -> None:
    """Creates, updates and deletes slices of the Service ``key``, in this order; ``own`` records the answers.

    Raises: the API's errors; earlier writes stay.
    """
    namespace = key.partition("/")[0]
    for item in changes.create:
        own.wrote(key, await client.create(ENDPOINTSLICES, _body(item), namespace))
    for item in changes.update:
        own.wrote(key, await client.update(ENDPOINTSLICES, _body(item), namespace, name=item.metadata.name))
    for name in changes.delete:
        try:
            await client.delete(ENDPOINTSLICES, name, namespace)
        except NotFound:
            continue


def _body(item: EndpointSlice) -> dict[str, object]:
    """The API form; empty lists are written as such, since null would mean "unknown"."""
    body: dict[str, object] = msgspec.to_builtins(item)
    body.setdefault("addressType", item.address_type)
    body.setdefault("endpoints", [])
    body.setdefault("ports", [])
    return body | {"apiVersion": item.api_version, "kind": item.kind}
