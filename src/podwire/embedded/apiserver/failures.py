"""Errors as Kubernetes words them, and their rendering as ``v1.Status``.

Sources: ``k8s.io/apimachinery/pkg/api/errors`` (reasons, messages, details).
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from podwire.embedded.apiserver.kinds import ResourceKind
from podwire.errors import AlreadyExists, ApiError, Conflict, Gone, Invalid, NotFound
from podwire.http.message import Response

_REASONS = {
    400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 405: "MethodNotAllowed",
    406: "NotAcceptable", 409: "Conflict", 410: "Expired", 413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType", 422: "Invalid", 429: "TooManyRequests", 500: "InternalError",
    503: "ServiceUnavailable", 504: "Timeout",
}  # fmt: skip

_EXPIRED_TOKEN = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)
"""The message of Kubernetes."""


def _details(kind: ResourceKind, name: str) -> dict[str, Any]:
    details: dict[str, Any] = {"name": name} if name else {}
    if kind.group:
        details["group"] = kind.group
    return {**details, "kind": kind.plural}


def not_found(kind: ResourceKind, name: str) -> NotFound:
    """The object does not exist."""
    return NotFound(404, "NotFound", f'{kind.resource} "{name}" not found', _details(kind, name))


def no_resource() -> NotFound:
    """The path names nothing that is served."""
    return NotFound(404, "NotFound", "the server could not find the requested resource")


def already_exists(kind: ResourceKind, name: str) -> AlreadyExists:
    """An object of that name exists."""
    return AlreadyExists(409, "AlreadyExists", f'{kind.resource} "{name}" already exists', _details(kind, name))


def conflict(kind: ResourceKind, name: str, problem: str = "") -> Conflict:
    """The object is not in the state that the request expects."""
    problem = problem or ("the object has been modified; please apply your changes to the latest version and try again")
    message = f'Operation cannot be fulfilled on {kind.resource} "{name}": {problem}'
    return Conflict(409, "Conflict", message, _details(kind, name))


def precondition(kind: ResourceKind, name: str, field: str, expected: str, actual: str) -> Conflict:
    """``field`` of the object differs from the client's precondition."""
    return conflict(
        kind, name, f"Precondition failed: {field} in precondition: {expected}, {field} in object meta: {actual}"
    )


def forbidden(kind: ResourceKind, name: str, problem: str) -> ApiError:
    """The request is understood and refused."""
    of = f' "{name}"' if name else ""
    return ApiError(403, "Forbidden", f"{kind.resource}{of} is forbidden: {problem}", _details(kind, name))


def bad_request(problem: str) -> ApiError:
    """The request cannot be understood."""
    return ApiError(400, "BadRequest", problem)


def method_not_allowed() -> ApiError:
    """The path exists, the verb does not."""
    return ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def unsupported_media_type(accepted: str) -> ApiError:
    """The body has a form that is not taken."""
    return ApiError(
        415, "UnsupportedMediaType",
        f"the body of the request was in an unknown format - accepted media types include: {accepted}",
    )  # fmt: skip


def not_acceptable() -> ApiError:
    """The server supports no media type that the client accepts."""
    return ApiError(
        406, "NotAcceptable",
        "only the following media types are accepted: application/json, application/yaml",
    )  # fmt: skip


class ExpiredToken(Gone):
    """410 for a continue token; ``token`` continues the list with the objects as they are now."""

    def __init__(self, token: str) -> None:
        super().__init__(410, "Expired", _EXPIRED_TOKEN)
        self.token = token


def expired(problem: str) -> Gone:
    """The version or the continue token is too old."""
    return Gone(410, "Expired", problem)


def too_old(asked: int, oldest: int) -> Gone:
    """The changes since the requested version are not kept any more."""
    return expired(f"too old resource version: {asked} ({oldest})")


def unauthorized() -> ApiError:
    """The credentials are wrong."""
    return ApiError(401, "Unauthorized", "Unauthorized")


class Cause(msgspec.Struct, frozen=True):
    """One field that is wrong: path, machine-readable reason, message."""

    field: str
    reason: str
    message: str


def invalid(kind: ResourceKind, name: str, causes: Iterable[Cause]) -> Invalid:
    """Validation failed."""
    all_causes = tuple(causes)
    texts = [f"{cause.field}: {cause.message}" if cause.field else cause.message for cause in all_causes]
    text = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    noun = f"{kind.kind}.{kind.group}" if kind.group else kind.kind
    details: dict[str, Any] = {"name": name, "kind": kind.kind}
    if kind.group:
        details["group"] = kind.group
    details["causes"] = [{"reason": c.reason, "message": c.message, "field": c.field} for c in all_causes]
    return Invalid(422, "Invalid", f'{noun} "{name}" is invalid: {text}', details)


def status_of(failure: ApiError) -> dict[str, Any]:
    """The ``v1.Status`` of a failure."""
    meta = {"continue": failure.token} if isinstance(failure, ExpiredToken) else {}
    status: dict[str, Any] = {
        "kind": "Status", "apiVersion": "v1", "metadata": meta, "status": "Failure",
        "message": failure.message, "reason": failure.reason or _REASONS.get(failure.code, ""),
    }  # fmt: skip
    if failure.details or failure.code in (403, 404):
        status["details"] = dict(failure.details)
    return {**status, "code": failure.code}


def render(failure: ApiError, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """The answer to a request that failed."""
    retry = failure.details.get("retryAfterSeconds")
    if retry is not None:
        headers = (*headers, ("Retry-After", str(retry)))
    return Response(failure.code, msgspec.json.encode(status_of(failure)), headers=headers)


def render_refusal(code: int, message: str) -> Response:
    """The answer of the HTTP layer to a request that it refuses."""
    return render(ApiError(code, _REASONS.get(code, "BadRequest"), message))


def success(kind: ResourceKind, name: str, uid: str) -> dict[str, Any]:
    """The ``v1.Status`` of a deletion."""
    details: Mapping[str, Any] = {**_details(kind, name), "uid": uid}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
