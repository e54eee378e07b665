"""Create, update, patch and delete: from a request to a change in the store.

The old object is read and the new object is stored in one turn of the event loop, so no other write can come between. A
write waits only for webhooks and for the disk. When the stored object has changed by the time a webhook answers, the
write begins again. The order is that of Kubernetes: metadata rules, rules of the kind, defaults, mutating admission
plugins, allocation, validation, validating admission plugins, managed fields, then the store. A dry run does all steps
except the last.
"""

import uuid
from collections.abc import Mapping
from typing import Any

from podwire.embedded.apiserver import conversion, failures, strategies
from podwire.embedded.apiserver.admission.chain import AdmissionChain, AdmissionRequest
from podwire.embedded.apiserver.aggregation.status import gives_way
from podwire.embedded.apiserver.calls import Call
from podwire.embedded.apiserver.conversionwebhooks import ConversionWebhooks
from podwire.embedded.apiserver.deletion import Deletion, deletes_now
from podwire.embedded.apiserver.kinds import Key, ResourceKind
from podwire.embedded.apiserver.semantics import Semantics
from podwire.embedded.apiserver.store import Store, StoredObject, is_stored_in
from podwire.embedded.apiserver.waits import Waits
from podwire.errors import ApiError, Conflict
from podwire.runtime.clock import Clock, rfc3339

Object = dict[str, Any]

_FROM_OLD = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink")


_OTHER_NAMESPACE = "the namespace of the provided object does not match the namespace sent on the request"
_ADMITTED_BEFORE = ("scale",)
"""Subresources whose own body was admitted before the object is changed by it."""


class Outdated(Conflict):
    """The object of a write changed during a webhook call: the write must begin again."""


def outdated(kind: ResourceKind, name: str) -> Outdated:
    """The failure of a write that must begin again."""
    failure = failures.conflict(kind, name)
    return Outdated(failure.code, failure.reason, failure.message, failure.details)


class WriteResult:
    """The result of a write: the stored object, or the object of a dry run, and whether the write created it."""

    __slots__ = ("created", "entry", "obj")

    def __init__(self, entry: StoredObject | None, obj: Object | None, *, created: bool) -> None:
        self.entry = entry
        self.obj = obj
        self.created = created


class Writer:
    """Applies writes to the store."""

    def __init__(
        self,
        store: Store,
        semantics: Semantics,
        admission: AdmissionChain,
        conversions: ConversionWebhooks,
        clock: Clock,
    ) -> None:
        self._store = store
        self._semantics = semantics
        self.conversions = conversions
        self.admission = admission
        self._clock = clock
        self.deletion = Deletion(store, clock)

    def admit(self, request: AdmissionRequest) -> Waits[Object]:
        """Runs the admission plugins for a request that stores no object of the kind; returns its body.

        Raises: ApiError when a plugin refuses the request.
        """
        yield from self.admission.mutate(request)
        yield from self.admission.validate(request)
        return request.obj

    def _admitted(self, request: AdmissionRequest, old: Object | None) -> Waits[Object]:
        """The object as it will be stored: completed, changed and accepted by admission, allocated and valid.

        Raises: ApiError when a plugin refuses the object, Invalid when it is wrong.
        """
        call = request.call
        asks = call.subresource not in _ADMITTED_BEFORE
        if asks:
            yield from self.admission.mutate(request)
        obj = request.obj
        if request.waited and old is not None:
            _restore(call, obj, old)
        unallocated = obj
        if call.subresource != "status":
            obj = request.obj = self._semantics.allocate(call, obj, old)
        self._semantics.validate(call, obj, old)
        if asks:
            yield from self.admission.validate(request)
        if request.waited and not self._semantics.is_free(call, obj, old):
            # Another Service has taken an address or port meanwhile.
            obj = self._semantics.allocate(call, unallocated, old)
        return obj

    def now(self) -> str:
        """The current time as the API writes it."""
        return rfc3339(self._clock.now())

    def parse(self, call: Call, media_type: str, body: bytes) -> Object:
        """The object in a body, with warnings for unknown fields added to the call.

        Raises: ApiError 400 for a body that cannot be read, or that strict field validation refuses.
        """
        return self._semantics.parsed(call, media_type, body)

    def patched_scale(self, call: Call, media_type: str, scale: Object) -> Object:
        """A Scale with the patch in the request applied."""
        return self._semantics.patched(call, media_type, call.request.body, scale)

    # -- create

    def create(self, call: Call, obj: Object, *, applied: bool = False) -> Waits[WriteResult]:
        """Stores a new object.

        Raises: ApiError when the object exists or is invalid, or when its namespace accepts no new objects.
        """
        kind = call.kind
        meta = self._metadata(call, obj)
        name = meta.get("name") or ""
        if not name and meta.get("generateName"):
            name = meta["name"] = self._free_name(kind, call.namespace, meta["generateName"])
        self._check_namespace(call, kind)
        if name:
            self._replaced(call, name, obj)
        for field in ("resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"):
            meta.pop(field, None)
        if not applied:
            meta.pop("managedFields", None)
        meta["uid"] = str(uuid.uuid4())
        meta["creationTimestamp"] = self.now()
        strategies.prepare_create(kind, obj)
        obj = self._semantics.fill(call, conversion.in_storage_version(kind, obj))
        obj = yield from self._admitted(AdmissionRequest(call, "CREATE", obj), None)
        name = _identified(obj, name, call.namespace)
        if not applied:
            self._semantics.track(call, obj, None, self.now())
        storage_form = (yield from self.conversions.to_storage(kind, obj)) if kind.webhook else obj
        self._check_namespace(call, kind)
        before = self._replaced(call, name, obj)
        if kind.table in strategies.STORED_ONLY:
            call.warnings.append(f"{kind.resource}: {strategies.STORED_ONLY[kind.table]}")
        if call.dry_run:
            return WriteResult(None, obj, created=True)
        if before is not None:
            self._store.delete(before)
        return WriteResult(self._store.put(kind.table, storage_form), None, created=True)

    def _replaced(self, call: Call, name: str, new: Object) -> StoredObject | None:
        """The object of the same name that a new one replaces; None when there is none.

        Raises: AlreadyExists for any other object of that name.
        """
        before = self._store.get(call.kind.table, call.namespace, name)
        if before is not None and not (gives_way(before) and (new.get("spec") or {}).get("service")):
            raise failures.already_exists(call.kind, name)
        return before

    def _free_name(self, kind: ResourceKind, namespace: str, prefix: str) -> str:
        for _ in range(8):
            name = strategies.generate_name(prefix)
            if self._store.get(kind.table, namespace, name) is None:
                return name
        raise failures.already_exists(kind, prefix)

    def _metadata(self, call: Call, obj: Object) -> Object:
        kind = call.kind
        version, noun = obj.get("apiVersion"), obj.get("kind")
        if version and version != kind.api_version:
            raise failures.bad_request(
                f'the API version in the data ({version}) does not match the expected API version '
                f'({kind.api_version})'
            )  # fmt: skip
        if noun and noun != kind.kind:
            raise failures.bad_request(f"the kind in the data ({noun}) does not match the expected {kind.kind}")
        if not version or not noun:
            body = {key: value for key, value in obj.items() if key not in ("apiVersion", "kind")}
            obj.clear()
            obj.update({"apiVersion": kind.api_version, "kind": kind.kind, **body})
        meta = obj.get("metadata")
        if not isinstance(meta, dict):
            meta = obj["metadata"] = {}
        if kind.namespaced:
            if meta.get("namespace") not in (None, "", call.namespace):
                raise failures.bad_request(_OTHER_NAMESPACE)
            meta["namespace"] = call.namespace
        else:
            meta.pop("namespace", None)
        if call.name:
            if meta.get("name") not in (None, "", call.name):
                raise failures.bad_request(
                    f"the name of the object ({meta['name']}) does not match the name on the URL ({call.name})"
                )
            meta["name"] = call.name
        return meta

    def _check_namespace(self, call: Call, kind: ResourceKind) -> None:
        if not kind.namespaced:
            return
        namespace = self._store.get("/namespaces", "", call.namespace)
        if namespace is None:
            raise ApiError(
                404, "NotFound", f'namespaces "{call.namespace}" not found',
                {"name": call.namespace, "kind": "namespaces"},
            )  # fmt: skip
        if namespace.fields.get("status.phase") == "Terminating":
            name = call.name or "the object"
            raise ApiError(
                403, "Forbidden",
                f'{kind.resource} "{name}" is forbidden: unable to create new content in namespace '
                f"{call.namespace} because it is being terminated",
                {"name": call.name, "kind": kind.plural, "causes": [
                    {"reason": "NamespaceTerminating", "field": "metadata.namespace",
                     "message": f"namespace {call.namespace} is being terminated"}]},
            )  # fmt: skip

    # -- update

    def update(self, call: Call, obj: Object) -> Waits[WriteResult]:
        """PUT: replaces an object, or creates it where the kind allows that.

        Raises: ApiError when the object is missing, has changed since it was read, or is invalid.
        """
        kind = call.kind
        self._metadata(call, obj)
        old = self._store.get(kind.table, call.namespace, call.name)
        if old is None:
            if kind.table in strategies.CREATED_BY_UPDATE and not call.subresource:
                return (yield from self.create(call, obj))
            raise failures.not_found(kind, call.name)
        if not obj["metadata"].get("resourceVersion") and (kind.custom or kind.table in strategies.VERSIONED_UPDATES):
            cause = failures.Cause(
                "metadata.resourceVersion", "FieldValueInvalid", "Invalid value: 0x0: must be specified for an update"
            )
            raise failures.invalid(kind, call.name, [cause])
        return (yield from self.replace(call, conversion.in_storage_version(kind, obj), old))

    def replace(self, call: Call, new: Object, old: StoredObject, *, applied: bool = False) -> Waits[WriteResult]:
        """Replaces ``old`` by ``new`` under the rules of an update.

        Raises: ApiError when the object has changed since it was read, or is invalid; Outdated when it has changed
        during a webhook call.
        """
        kind, dry_run = call.kind, call.dry_run
        before = (yield from self.conversions.view(kind, old)) if kind.custom else old.object()
        self._check_identity(kind, old, new["metadata"])
        _restore(call, new, before)
        if call.subresource != "status":
            new = self._semantics.fill(call, new)
        new = yield from self._admitted(AdmissionRequest(call, "UPDATE", new, before), before)
        if call.subresource != "status":
            strategies.count_generation(kind, new, before, call.subresource)
        if not applied:
            self._semantics.track(call, new, before, self.now())
        storage_form = (yield from self.conversions.to_storage(kind, new)) if kind.webhook else new
        if self._store.get(kind.table, old.namespace, old.name) is not old:
            raise outdated(kind, old.name)
        if same(new, before) and not _lacks_defaults(kind, old):
            return WriteResult(old, None, created=False)
        if dry_run:
            return WriteResult(None, new, created=False)
        if deletes_now(new, before):
            return WriteResult(self._store.delete(old, storage_form), None, created=False)
        return WriteResult(self._store.put(kind.table, storage_form), None, created=False)

    def _check_identity(self, kind: ResourceKind, old: StoredObject, meta: Mapping[str, Any]) -> None:
        version = str(meta.get("resourceVersion") or "")
        if version not in ("", "0", str(old.version)):
            raise failures.conflict(kind, old.name)
        uid = meta.get("uid")
        if uid and uid != old.uid:
            raise failures.precondition(kind, old.name, "UID", str(uid), old.uid)

    # -- patch

    def patch(self, call: Call, media_type: str, body: bytes) -> Waits[WriteResult]:
        """Applies a patch; a server-side apply creates an object that does not exist.

        Raises: ApiError when the object is missing, the patch does not fit, or fields conflict.
        """
        kind = call.kind
        old = self._store.get(kind.table, call.namespace, call.name)
        if self._semantics.is_apply(media_type):
            return (yield from self._apply(call, body, old))
        if old is None:
            raise failures.not_found(kind, call.name)
        before = yield from self.conversions.view(kind, old)
        new = self._semantics.patched(call, media_type, body, before)
        if not isinstance(new.get("metadata"), dict):
            raise failures.bad_request("the patch removes metadata")
        meta = new["metadata"]
        if meta.get("name") != old.name or meta.get("namespace", "") != old.namespace:
            raise failures.bad_request("the name or namespace of the object cannot be changed by a patch")
        self._metadata(call, new)
        return (yield from self.replace(call, conversion.in_storage_version(kind, new), old))

    def _apply(self, call: Call, body: bytes, old: StoredObject | None) -> Waits[WriteResult]:
        applied = self._semantics.parse_applied(call, body)
        self._metadata(call, applied)
        if old is None:
            if call.subresource:
                raise failures.not_found(call.kind, call.name)
            obj = self._semantics.applied(call, None, applied, self.now())
            return (yield from self.create(call, obj, applied=True))
        if (uid := applied["metadata"].get("uid")) and uid != old.uid:
            raise failures.precondition(call.kind, old.name, "UID", str(uid), old.uid)
        live = yield from self.conversions.view(call.kind, old)
        new = self._semantics.applied(call, live, applied, self.now())
        return (yield from self.replace(call, conversion.in_storage_version(call.kind, new), old, applied=True))


def _restore(call: Call, new: Object, old: Object) -> None:
    """Restores the fields that an update may not change, metadata that only the server sets among them."""
    meta, before = new["metadata"], old["metadata"]
    for field in _FROM_OLD:
        if field in before:
            meta[field] = before[field]
        else:
            meta.pop(field, None)
    meta["resourceVersion"] = before["resourceVersion"]
    if "managedFields" not in meta and "managedFields" in before:
        meta["managedFields"] = before["managedFields"]
    if call.subresource == "status":
        strategies.prepare_status(call.kind, new, old)
    else:
        strategies.prepare_change(call.kind, new, old, call.subresource)


def _identified(obj: Object, name: str, namespace: str) -> str:
    """The name of a new object after admission; a webhook may set a missing name and change no other.

    Raises: ApiError 400 when a webhook has changed name or namespace.
    """
    meta = obj["metadata"]
    if name and meta.get("name") != name:
        raise failures.bad_request(f"the name of the object was changed from {name} to {meta.get('name')} by admission")
    if (meta.get("namespace") or "") != namespace:
        raise failures.bad_request(_OTHER_NAMESPACE)
    return str(meta["name"])


def _lacks_defaults(kind: ResourceKind, old: StoredObject) -> bool:
    """Whether a custom object is stored without defaults that its definition has got since."""
    form = kind.form
    return form is not None and is_stored_in(old.raw, kind.api_version) and old.filled(form) is not old.raw


def same(new: Object, old: Object) -> bool:
    """Whether a write would change nothing but the times of managed fields."""
    if new == old:
        return True
    return _comparable(new) == _comparable(old)


def _comparable(obj: Object) -> Object:
    meta = dict(obj["metadata"])
    fields = meta.pop("managedFields", None) or ()
    meta.pop("resourceVersion", None)
    timeless = [{key: value for key, value in entry.items() if key != "time"} for entry in fields]
    return {**obj, "metadata": {**meta, "managedFields": timeless}}


def kind_of_table(kinds: Mapping[Key, ResourceKind], table: str) -> ResourceKind | None:
    """The first kind whose objects are in ``table``."""
    return next((kind for kind in kinds.values() if kind.table == table), None)
