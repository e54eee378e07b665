"""Writes the status of an object without overwriting conditions of other writers.

A status is written as a merge patch of the fields that changed. A merge patch replaces a whole list, so a patch of the
conditions names the object's version at the time of the plan. When another writer has changed the object since then,
the API answers with a conflict, and the loop plans again from the new object.
"""

from typing import Any

from podwire.kube.client import Client
from podwire.kube.resources import Resource
from podwire.model.meta import ObjectMeta

Json = dict[str, Any]


def status_body(meta: ObjectMeta, patch: Json) -> Json:
    """The merge patch of an object whose status gets the fields of ``patch``."""
    head = {"uid": meta.uid}
    if "conditions" in patch:
        head["resourceVersion"] = meta.resource_version
    return {"metadata": head, "status": patch}


async def write_status(client: Client, resource: Resource[Any], meta: ObjectMeta, patch: Json) -> Any:
    """The object as it was stored with the fields of ``patch`` in its status; None for an empty patch.

    Raises: NotFound when the object is gone, Conflict when it was replaced or has changed since it was read.
    """
    if not patch:
        return None
    return await client.patch(resource, meta.name, status_body(meta, patch), meta.namespace, subresource="status")
