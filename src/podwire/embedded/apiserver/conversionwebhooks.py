"""Conversion of custom objects between versions by a webhook (``spec.conversion.strategy: Webhook``).

Objects are stored in the storage version of their definition, and leave the server in the version that a client
requests. One call converts all objects of a list, or all changes that a watch sends at once. A converted object is
cached with the stored one until the definition changes, so reading it again calls no webhook. The webhook may change
labels and annotations, but no other metadata.

An unconverted object is detected when it is about to leave the server: :func:`podwire.embedded.apiserver.views.need`
raises :class:`Unconverted`. The request path then converts the object and tries again.

Source: ``k8s.io/apiextensions-apiserver/pkg/apiserver/conversion``.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from podwire.embedded.apiserver import views
from podwire.embedded.apiserver.admission.review import WebhookFailure
from podwire.embedded.apiserver.admission.webhookclient import WebhookClient
from podwire.embedded.apiserver.admission.webhookconfig import ClientConfig
from podwire.embedded.apiserver.kinds import ObjectForm, ResourceKind
from podwire.embedded.apiserver.store import StoredObject
from podwire.embedded.apiserver.waits import Waits
from podwire.errors import ApiError

Object = dict[str, Any]

_GROUP = "apiextensions.k8s.io"
_VERSIONS = ("v1", "v1beta1")
_TIMEOUT_S = 30
_LIMIT = 256 << 20
"""The largest answer in bytes; an answer may be a long list."""
_FREE_METADATA = ("labels", "annotations")

_encode = msgspec.json.Encoder().encode


class ConversionWebhook(NamedTuple):
    """The webhook of a definition, and its storage version."""

    storage: str
    """``GROUP/VERSION``."""
    client_config: ClientConfig
    review_versions: tuple[str, ...]
    forms: Mapping[str, ObjectForm] = {}
    """The defaults and selectable fields of each version, by ``GROUP/VERSION``."""

    def filled(self, obj: Object) -> Object:
        """A stored object with the defaults of its own version."""
        form = self.forms.get(str(obj.get("apiVersion")))
        return form.filled(obj) if form is not None else obj


class ConversionWebhooks:
    """Calls conversion webhooks."""

    def __init__(
        self,
        client: WebhookClient,
        webhook_of: Callable[[ResourceKind], ConversionWebhook | None],
        pruned: Callable[[ResourceKind, Object], Object],
    ) -> None:
        """``webhook_of`` finds the webhook of a kind, ``pruned`` removes the fields that a version does not have."""
        self._client = client
        self._webhook_of = webhook_of
        self._pruned = pruned

    def view(self, kind: ResourceKind, entry: StoredObject) -> Waits[Object]:
        """A stored object in the version of ``kind``, which the caller may change.

        Raises: ApiError when the webhook fails.
        """
        yield from self.prepare(kind, (entry,))
        return views.decoded(kind, entry)

    def prepare(self, kind: ResourceKind, entries: Sequence[StoredObject]) -> Waits[None]:
        """Converts stored objects, so that they can leave in the version of ``kind``.

        Raises: ApiError when the webhook fails.
        """
        if kind.webhook and any(not entry.is_in(kind.api_version) for entry in entries):
            failure = yield self.convert(kind, entries)
            if failure is not None:
                raise failure

    def to_storage(self, kind: ResourceKind, obj: Object) -> Waits[Object]:
        """An object of ``kind`` in the storage version.

        Raises: ApiError when the webhook fails.
        """
        webhook = self._webhook_of(kind) if kind.webhook else None
        if webhook is None or webhook.storage == obj["apiVersion"]:
            return obj
        converted = yield self._ask(webhook, kind, [obj], webhook.storage)
        if isinstance(converted, ApiError):
            raise converted
        return dict(converted[0])

    async def into(self, kind: ResourceKind, objects: Sequence[Object]) -> list[Object] | ApiError:
        """Objects of one version of a kind in that of ``kind``; returns the failure, if any."""
        webhook = self._webhook_of(kind)
        if webhook is None or all(obj.get("apiVersion") == kind.api_version for obj in objects):
            return list(objects)
        return await self._ask(webhook, kind, list(objects), kind.api_version)

    async def convert(self, kind: ResourceKind, entries: Iterable[StoredObject]) -> ApiError | None:
        """Converts the objects that are not in the version of ``kind`` yet by one call; returns the failure, if any."""
        version = kind.api_version
        missing = [entry for entry in entries if not entry.is_in(version)]
        webhook = self._webhook_of(kind)
        if webhook is None:
            return None
        objects = [webhook.filled(entry.object()) for entry in missing]
        converted = await self._ask(webhook, kind, objects, version) if missing else []
        if isinstance(converted, ApiError):
            return converted
        for entry, obj in zip(missing, converted, strict=True):
            entry.keep_converted(version, _encode(self._pruned(kind, obj)))
        return None

    async def _ask(
        self, webhook: ConversionWebhook, kind: ResourceKind, objects: list[Object], version: str
    ) -> list[Object] | ApiError:
        """The objects in another version, in their order, or the failure of the request."""
        first = objects[0]
        group, _, came_in = str(first.get("apiVersion")).partition("/")
        noun = f"conversion webhook for {group}/{came_in}, Kind={first.get('kind')}"
        review = next((name for name in webhook.review_versions if name in _VERSIONS), "v1")
        uid = str(uuid.uuid4())
        body = _encode({
            "kind": "ConversionReview", "apiVersion": f"{_GROUP}/{review}",
            "request": {"uid": uid, "desiredAPIVersion": version, "objects": objects},
        })  # fmt: skip
        try:
            try:
                answer = await self._client.post(webhook.client_config, body, _TIMEOUT_S, _LIMIT)
                converted = _converted_objects(answer, review, uid)
            except WebhookFailure as failure:
                raise WebhookFailure(f"{noun} failed: {failure}") from failure
            if len(converted) != len(objects):
                raise WebhookFailure(f"{noun} returned {len(converted)} objects, expected {len(objects)}")
            return [
                _accepted(before, after, version, f"{noun} returned invalid converted object at index {index}")
                for index, (before, after) in enumerate(zip(objects, converted, strict=True))
            ]
        except WebhookFailure as failure:
            return ApiError(500, "InternalError", str(failure))


def _converted_objects(body: bytes, review: str, uid: str) -> list[Any]:
    """The objects in a response.

    Raises: WebhookFailure when it is not a response to the request ``uid``, or reports a failure.
    """
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as failure:
        raise WebhookFailure(f"couldn't get version/kind; json parse error: {failure}") from failure
    document = document if isinstance(document, dict) else {}
    version, kind = document.get("apiVersion"), document.get("kind")
    if (version, kind) != (f"{_GROUP}/{review}", "ConversionReview"):
        expected = f"{_GROUP}/{review}, Kind=ConversionReview"
        raise WebhookFailure(f"expected webhook response of {expected}, got {version or ''}, Kind={kind or ''}")
    response = document.get("response")
    if not isinstance(response, dict):
        raise WebhookFailure("no response provided")
    if response.get("uid") != uid and review == "v1":
        raise WebhookFailure(f'expected response.uid="{uid}", got "{response.get("uid") or ""}"')
    result = response.get("result") or {}
    if result.get("status") != "Success":
        problem = f"response.result.status was '{result.get('status') or ''}', not 'Success'"
        raise WebhookFailure(str(result.get("message") or problem))
    return list(response.get("convertedObjects") or ())


def _accepted(before: Object, after: Any, version: str, noun: str) -> Object:
    """A converted object with the metadata of the original, but for labels and annotations.

    Raises: WebhookFailure when the webhook has changed what it must not change.
    """
    if not isinstance(after, dict) or not isinstance(after.get("metadata"), dict):
        raise WebhookFailure(f"{noun}: it is no object with metadata")
    if after.get("apiVersion") != version:
        problem = f"invalid groupVersion (expected {version}, received {after.get('apiVersion') or ''})"
        raise WebhookFailure(f"{noun}: {problem}")
    if after.get("kind") != before.get("kind"):
        problem = f"invalid kind (expected {before.get('kind')}, received {after.get('kind') or ''})"
        raise WebhookFailure(f"{noun}: {problem}")
    meta, new = before["metadata"], after["metadata"]
    for field, noun_of_field in (("name", "name"), ("namespace", "namespace"), ("uid", "UID")):
        if (new.get(field) or "") != (meta.get(field) or ""):
            problem = f"must have the same {noun_of_field}: {meta.get(field) or ''} != {new.get(field) or ''}"
            raise WebhookFailure(f"{noun}: {problem}")
    fixed = {key: value for key, value in meta.items() if key not in _FREE_METADATA}
    for field in _FREE_METADATA:
        values = new.get(field)
        if values is not None and not (isinstance(values, dict) and all(isinstance(v, str) for v in values.values())):
            raise WebhookFailure(f"{noun}: metadata.{field} must be a map of texts")
        if values:
            fixed[field] = values
    head = {"apiVersion": version, "kind": after["kind"], "metadata": fixed}
    return {**head, **{key: value for key, value in after.items() if key not in head}}
