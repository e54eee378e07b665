"""The objects of a request in the version that a webhook or a policy wants, and back.

Custom objects are converted by the webhook of their definition, objects of built-in kinds by
:mod:`podwire.embedded.apiserver.conversion`. The body of a subresource that is of another kind (``Scale``,
``PodExecOptions``) has one version and stays as it is.
Source: ``k8s.io/apiserver/pkg/admission/conversion.go`` (``NewVersionedAttributes``).
"""

from collections.abc import Sequence
from typing import Any

from podwire.embedded.apiserver import conversion
from podwire.embedded.apiserver.admission.chain import AdmissionContext, AdmissionRequest
from podwire.embedded.apiserver.kinds import ResourceKind
from podwire.embedded.apiserver.waits import Waits
from podwire.errors import ApiError

Object = dict[str, Any]


def in_version(request: AdmissionRequest, kind: ResourceKind, context: AdmissionContext) -> Waits[AdmissionRequest]:
    """The request with its objects in the version of ``kind``.

    Raises: ApiError when a conversion webhook fails.
    """
    own = request.call.kind
    if _has_other_body(request) or (kind == own and not kind.shared):
        return request
    objects = [obj for obj in (request.obj, request.old) if obj]
    converted_objects = yield from converted(objects, own, kind, context)
    obj = converted_objects.pop(0) if request.obj else None
    return AdmissionRequest(
        request.call, request.operation, obj, converted_objects[0] if converted_objects else None, request.options
    )


def accepted(
    request: AdmissionRequest, kind: ResourceKind, changed: Object, context: AdmissionContext
) -> Waits[Object]:
    """An object that was changed in the version of ``kind``, in the version of the request, with its defaults.

    Raises: ApiError when a conversion webhook fails, or when a field has the wrong type.
    """
    if not _has_other_body(request):
        own = request.call.kind
        (changed,) = yield from converted([changed], kind, own, context)
    return context.decode(request.call, changed)


def converted(
    objects: Sequence[Object], own: ResourceKind, kind: ResourceKind, context: AdmissionContext
) -> Waits[list[Object]]:
    """Objects of ``own`` in the version of ``kind``.

    Raises: ApiError when a conversion webhook fails.
    """
    if kind.webhook and kind != own:
        results = yield context.convert(kind, objects)
        if isinstance(results, ApiError):
            raise results
        return list(results)
    return [conversion.view(kind, obj) for obj in objects]


def _has_other_body(request: AdmissionRequest) -> bool:
    call = request.call
    sub = call.kind.subresource(call.subresource) if call.subresource else None
    return sub is not None and sub.kind != call.kind.kind
