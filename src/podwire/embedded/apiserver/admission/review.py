"""AdmissionReviews of ``admission.k8s.io/v1``: renders the request to a webhook, and parses its response.

Sources: ``k8s.io/apiserver/pkg/admission/plugin/webhook/request``, ``.../errors/statuserror.go``.
"""

import base64
import binascii
import json
from typing import Any, NamedTuple

from podwire.embedded.apiserver import conversion
from podwire.embedded.apiserver.admission.chain import AdmissionRequest
from podwire.embedded.apiserver.kinds import ResourceKind
from podwire.errors import ApiError, PodwireError

Object = dict[str, Any]

API_VERSION = "admission.k8s.io/v1"
_OPTIONS = {"CREATE": "CreateOptions", "UPDATE": "UpdateOptions", "DELETE": "DeleteOptions"}


class WebhookFailure(PodwireError):
    """A webhook could not be called, or its answer could not be parsed."""


class WebhookAnswer(NamedTuple):
    """The decision of a webhook."""

    allowed: bool
    patch: list[Object] | None = None
    warnings: tuple[str, ...] = ()
    status: Object = {}
    annotations: dict[str, str] = {}
    """For the audit event of the request."""


def render_review(request: AdmissionRequest, kind: ResourceKind, uid: str) -> Object:
    """The AdmissionReview that a webhook gets, with the objects in the version of ``kind``."""
    asked = {"uid": uid, **describe(request, kind), **objects(request, kind)}
    return {"kind": "AdmissionReview", "apiVersion": API_VERSION, "request": asked}


def describe(request: AdmissionRequest, kind: ResourceKind) -> Object:
    """The AdmissionRequest of ``admission.k8s.io/v1``, without uid and objects."""
    call = request.call
    user: Object = {"username": call.user.name, "groups": list(call.user.groups)}
    if call.user.uid:
        user["uid"] = call.user.uid
    if call.user.extra:
        user["extra"] = {key: list(values) for key, values in call.user.extra.items()}
    asked: Object = {
        "kind": _kind_of(kind, call.subresource), "resource": _resource_of(kind),
        "requestKind": _kind_of(call.kind, call.subresource), "requestResource": _resource_of(call.kind),
    }  # fmt: skip
    if call.subresource:
        asked |= {"subResource": call.subresource, "requestSubResource": call.subresource}
    if request.name:
        asked["name"] = request.name
    namespace = call.namespace or (call.name if call.kind.table == "/namespaces" else "")
    if namespace:
        asked["namespace"] = namespace
    options = _options(request)
    return {**asked, "operation": request.operation, "userInfo": user, "dryRun": call.dry_run, "options": options}


def objects(request: AdmissionRequest, kind: ResourceKind) -> Object:
    """The new and the old object in the version of ``kind``, under ``object`` and ``oldObject``; None for none."""
    subresource = request.call.subresource
    with_old = request.operation in ("UPDATE", "DELETE") and request.old
    return {
        "object": _view(kind, request.obj, subresource) if request.obj else None,
        "oldObject": _view(kind, request.old, subresource) if with_old else None,
    }


def _view(kind: ResourceKind, obj: Object, subresource: str) -> Object:
    sub = kind.subresource(subresource) if subresource else None
    return obj if sub is not None and sub.kind != kind.kind else conversion.view(kind, obj)


def _kind_of(kind: ResourceKind, subresource: str) -> Object:
    sub = kind.subresource(subresource) if subresource else None
    if sub is not None and sub.kind != kind.kind:
        return {"group": sub.group, "version": sub.version, "kind": sub.kind}
    return {"group": kind.group, "version": kind.version, "kind": kind.kind}


def _resource_of(kind: ResourceKind) -> Object:
    return {"group": kind.group, "version": kind.version, "resource": kind.plural}


def _options(request: AdmissionRequest) -> Object | None:
    call = request.call
    noun = _OPTIONS.get(request.operation)
    if noun is None:
        return None
    if request.operation == "UPDATE" and call.request.method == "PATCH":
        noun = "PatchOptions"
    options: Object = {"kind": noun, "apiVersion": "meta.k8s.io/v1", **request.options}
    for name in ("fieldManager", "fieldValidation"):
        if call.query.get(name):
            options[name] = call.query[name]
    if call.dry_run:
        options["dryRun"] = ["All"]
    return options


def parse_review(body: bytes, uid: str, *, mutating: bool) -> WebhookAnswer:
    """The decision in the response of a webhook.

    Raises: WebhookFailure when the response does not answer the request ``uid``.
    """
    try:
        review = json.loads(body)
    except ValueError as failure:
        raise WebhookFailure(f"couldn't get version/kind; json parse error: {failure}") from failure
    if not isinstance(review, dict):
        raise WebhookFailure("couldn't get version/kind; json parse error: the response is not an object")
    version, kind = review.get("apiVersion"), review.get("kind")
    if (version, kind) != (API_VERSION, "AdmissionReview"):
        problem = f"expected webhook response of {API_VERSION}, Kind=AdmissionReview, got {version or ''}, Kind={kind}"
        raise WebhookFailure(problem)
    answer = review.get("response")
    if not isinstance(answer, dict):
        raise WebhookFailure("webhook response was absent")
    if answer.get("uid") != uid:
        raise WebhookFailure(f'expected response.uid="{uid}", got "{answer.get("uid") or ""}"')
    patch = _patch_of(answer, mutating=mutating)
    warnings = tuple(str(text) for text in answer.get("warnings") or ())
    status = answer.get("status")
    own = answer.get("auditAnnotations")
    annotations = {str(key): str(text) for key, text in own.items()} if isinstance(own, dict) else {}
    is_allowed = answer.get("allowed") is True
    return WebhookAnswer(is_allowed, patch, warnings, status if isinstance(status, dict) else {}, annotations)


def _patch_of(answer: Object, *, mutating: bool) -> list[Object] | None:
    patch, kind = answer.get("patch"), answer.get("patchType")
    if not mutating:
        for name, value in (("patch", patch), ("patchType", kind)):
            if value:
                raise WebhookFailure(f"validating webhook may not return response.{name}")
        return None
    if not patch and kind is None:
        return None
    if kind is None:
        raise WebhookFailure("webhook returned response.patch but not response.patchType")
    if not patch:
        raise WebhookFailure("webhook returned response.patchType but not response.patch")
    if kind != "JSONPatch":
        problem = "unsupported patch type" if kind else "webhook returned invalid response.patchType of"
        raise WebhookFailure(f'{problem} "{kind}"')
    return _operations(patch)


def _operations(patch: Any) -> list[Object]:
    try:
        operations = json.loads(base64.b64decode(str(patch), validate=True))
    except (ValueError, binascii.Error) as failure:
        raise WebhookFailure(f"response.patch is not JSON in base64: {failure}") from failure
    if not isinstance(operations, list):
        raise WebhookFailure("response.patch is not a list of operations")
    return operations


def refusal(name: str, status: Object) -> ApiError:
    """The failure of a request that the webhook ``name`` denied, with the code and message of its status."""
    code = status.get("code")
    code = code if isinstance(code, int) and code >= 400 else 400
    reason, text = str(status.get("reason") or ""), str(status.get("message") or "")
    explanation = f": {text or reason}" if text or reason else " without explanation"
    details = status.get("details")
    message = f'admission webhook "{name}" denied the request{explanation}'
    return ApiError(code, reason, message, details if isinstance(details, dict) else {})


def failed_call(name: str, problem: str) -> ApiError:
    """The failure of a request whose webhook ``name`` failed and has ``failurePolicy: Fail``."""
    return internal_error(f'failed calling webhook "{name}": {problem}')


def internal_error(problem: str) -> ApiError:
    """A failure of the server, or of a server that it called."""
    message = f"Internal error occurred: {problem}"
    return ApiError(500, "InternalError", message, {"causes": [{"message": problem}]})
