"""Server-side apply of objects in their API form, by a named field manager."""

import msgspec

from podwire.kube.client import APPLY_PATCH, Client
from podwire.kube.decode import decode_failure, decode_object
from podwire.kube.resources import Json, Resource
from podwire.model.meta import Fact


class ApplyRequest(Fact, frozen=True, kw_only=True):
    """How a body is applied: by which manager, over the fields of other managers (``force``), or as a trial."""

    manager: str
    force: bool = False
    dry: bool = False
    """Whether the API only answers what it would store."""


async def apply_object(client: Client, resource: Resource[Json], body: Json, request: ApplyRequest) -> Json:
    """The object as stored, or as it would be stored.

    Raises: Conflict naming the managers of the fields, unless ``force``; ApiError, ApiUnreachable.
    """
    meta = body["metadata"]
    query = {"fieldManager": request.manager}
    if request.force:
        query["force"] = "true"
    if request.dry:
        query["dryRun"] = "All"
    path = resource.path(str(meta.get("namespace") or ""), str(meta["name"]))
    answer = await client.raw("PATCH", path, query, msgspec.json.encode(body), {"content-type": APPLY_PATCH})
    if answer.status >= 400:
        raise decode_failure(answer.status, answer.body)
    return decode_object(answer.body, dict)
