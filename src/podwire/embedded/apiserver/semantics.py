"""The rules of objects for the request path: schemas, defaults, validation, patches, managed fields, allocation.

The rules themselves are pure functions in other modules; the request path calls them only through this module.
"""

import datetime
from collections.abc import Sequence
from typing import Any

from podwire.embedded.apiserver import bodies, conversion, crd, failures
from podwire.embedded.apiserver.allocate import ServiceAllocator
from podwire.embedded.apiserver.calls import Call
from podwire.embedded.apiserver.connectoptions import CONNECTIONS
from podwire.embedded.apiserver.customresources import TABLE, CustomResources
from podwire.embedded.apiserver.defaults import objects as defaults
from podwire.embedded.apiserver.kinds import ResourceKind
from podwire.embedded.apiserver.patch import json_patch, merge, server_side, strategic
from podwire.embedded.apiserver.schema import data
from podwire.embedded.apiserver.serviceips import ADDRESSES, is_managed
from podwire.embedded.apiserver.serviceranges import RANGES, further_ranges
from podwire.embedded.apiserver.settings import ApiServerSettings
from podwire.embedded.apiserver.store import ObjectChange, Store
from podwire.embedded.apiserver.tables import columns
from podwire.embedded.apiserver.validate import fields, objects
from podwire.errors import Invalid

Object = dict[str, Any]


class Semantics:
    """The rules of every kind."""

    def __init__(self, settings: ApiServerSettings, store: Store, custom: CustomResources) -> None:
        self._settings = settings
        self._store = store
        self.custom = custom

    def start(self) -> None:
        """Derives the allocated addresses and ports from the store, and follows its writes."""
        self._derive()
        self._store.on_write.append(self._observe)
        self._store.on_rollback.append(self._derive)

    def _derive(self) -> None:
        ranges = (*self._settings.service_cidrs, *further_ranges(self._store, self._settings.service_cidrs))
        self._allocator = ServiceAllocator(ranges, self._settings.node_port_range())
        for entry in self._store.entries("/services"):
            self._allocator.observe(None, entry.object())
        for entry in self._store.entries(ADDRESSES):
            if not is_managed(entry):
                self._allocator.hold(entry.name, entry.name)

    def _observe(self, change: ObjectChange) -> None:
        if change.entry.table == "/services":
            old = change.before.object() if change.before is not None else None
            self._allocator.observe(old, None if change.type == "DELETED" else change.entry.object())
        elif change.entry.table == RANGES:
            self._derive()
        elif change.entry.table == ADDRESSES and not is_managed(change.entry):
            keep = self._allocator.release if change.type == "DELETED" else self._allocator.hold
            keep(change.entry.name, change.entry.name)

    def schema(self, kind: ResourceKind) -> data.SchemaNode:
        """The schema of a kind's objects."""
        if kind.custom:
            served = self.custom.served(kind)
            return served.node if served is not None else data.SchemaNode({}, {})
        return data.for_kind(kind.group, kind.version, kind.kind) or data.SchemaNode({}, {})

    def table(self, kind: ResourceKind, objects: Sequence[Object], now: datetime.datetime, include: str) -> Object:
        """A Table with one row an object."""
        served = self.custom.served(kind) if kind.custom else None
        own = served.columns if served is not None else None
        shown: Object = columns.render(kind, objects, now, include=include, columns=own)  # type: ignore[arg-type]
        return shown

    def parsed(self, call: Call, media_type: str, body: bytes) -> Object:
        """The object in a request's body, by its schema; unknown fields are warned of or refused.

        Raises: ApiError 400 for a body that cannot be read, or is refused by strict field validation.
        """
        obj = bodies.parse_object(media_type, body)
        return self._decoded(call, obj, _repeated(call, media_type, body))

    def _decoded(self, call: Call, obj: Object, repeated: list[str]) -> Object:
        mode = call.query.get("fieldValidation", "") or "Warn"
        if mode not in ("Strict", "Warn", "Ignore"):
            raise failures.bad_request(
                f'fieldValidation: Unsupported value: "{mode}": supported values: "Ignore", "Strict", "Warn"'
            )
        served = self.custom.served(call.kind) if call.kind.custom and call.subresource in ("", "status") else None
        if served is not None:
            decoded = crd.decode(obj, served.raw, call.kind)
        else:
            decoded = fields.decode(obj, self._schema_of(call), call.kind)
        if mode != "Ignore" and (decoded.unknown or repeated):
            problems = [*fields.problems(decoded.unknown, []), *repeated]
            if mode == "Strict":
                raise fields.strict_refusal(call.kind, problems)
            call.warnings.extend(problems)
        return decoded.obj

    def _schema_of(self, call: Call) -> data.SchemaNode:
        """The schema of the call's body: of the kind, or of a Scale, Binding, Eviction."""
        sub = call.kind.subresource(call.subresource) if call.subresource else None
        if sub is not None and sub.kind != call.kind.kind:
            schema = data.for_kind(sub.group, sub.version, sub.kind)
            if schema is not None:
                return schema
        return self.schema(call.kind)

    def fill(self, call: Call, new: Object) -> Object:
        """The object with its defaults."""
        if call.kind.custom:
            served = self.custom.served(call.kind)
            filled: Object = crd.fill(new, served.raw) if served is not None else new
            return filled
        return defaults.apply(call.kind, new)

    def allocate(self, call: Call, new: Object, old: Object | None) -> Object:
        """The object with its allocated addresses and ports; the kinds of a definition with its status.

        Raises: Invalid when an address or port is not free.
        """
        if call.kind.table == "/services":
            new = self._allocator.assign(new, old)
        elif call.kind.table == TABLE:
            self.custom.establish(new, old)
        return new

    def is_free(self, call: Call, new: Object, old: Object | None) -> bool:
        """Whether the addresses and ports allocated to an object are still free."""
        if call.kind.table != "/services" or call.subresource == "status":
            return True
        try:
            self._allocator.assign(new, old)
        except Invalid:
            return False
        return True

    def changed(self, call: Call, obj: Object) -> Object:
        """An object that admission has changed, in the version of the call: decoded by its schema, with its defaults.

        Raises: ApiError 400 when a field has the wrong type.
        """
        served = self.custom.served(call.kind) if call.kind.custom and call.subresource in ("", "status") else None
        if served is not None:
            return self.fill(call, crd.decode(obj, served.raw, call.kind).obj)
        own = call.kind.subresource(call.subresource) if call.subresource else None
        if call.subresource in CONNECTIONS:
            return obj
        decoded = fields.decode(obj, self._schema_of(call), call.kind).obj
        if own is not None and own.kind != call.kind.kind:
            return decoded
        return self.fill(call, conversion.in_storage_version(call.kind, decoded))

    def validate(self, call: Call, new: Object, old: Object | None) -> None:
        """Checks an object that is about to be stored.

        Raises: Invalid with every field that is wrong.
        """
        wrong = objects.check(call.kind, new, old, call.subresource)
        served = self.custom.served(call.kind) if call.kind.custom else None
        if served is not None:
            wrong += crd.check(new, served.raw)
            if served.rules is not None:
                wrong += crd.check_rules(new, old, served.rules, wrong)
        elif call.kind.table == TABLE:
            wrong += crd.check_definition(new, old)
        if wrong:
            raise failures.invalid(call.kind, new["metadata"].get("name") or "", wrong)

    def track(self, call: Call, new: Object, old: Object | None, now: str) -> None:
        """Keeps managed fields current for a write that is not an apply."""
        author = server_side.Author(call.manager, now, call.subresource)
        server_side.track(old, new, self.schema(call.kind), author)

    def is_apply(self, media_type: str) -> bool:
        """Whether a patch is a server-side apply."""
        return media_type == bodies.APPLY_YAML

    def patched(self, call: Call, media_type: str, body: bytes, before: Object) -> Object:
        """The object with the patch applied."""
        patch = bodies.parse_json(body) if not media_type.endswith("yaml") else bodies.parse_yaml(body)
        result: Any
        if media_type == bodies.JSON_PATCH:
            result = json_patch.apply(before, patch)
        elif media_type == bodies.MERGE_PATCH:
            result = merge.apply(before, patch)
        elif media_type == bodies.STRATEGIC_PATCH and not call.kind.custom:
            result = strategic.apply(before, patch, self._schema_of(call))
        else:
            raise failures.unsupported_media_type(
                ", ".join((bodies.JSON_PATCH, bodies.MERGE_PATCH, bodies.STRATEGIC_PATCH, bodies.APPLY_YAML))
            )
        if not isinstance(result, dict):
            raise failures.bad_request("the patched value is not an object")
        return self._decoded(call, result, [])

    def parse_applied(self, call: Call, body: bytes) -> Object:
        """The configuration of a server-side apply."""
        document = bodies.parse_yaml(body)
        if not isinstance(document, dict):
            raise failures.bad_request("the body is not an object")
        repeated = _repeated(call, bodies.YAML, body)
        if repeated and call.query.get("fieldValidation") == "Strict":
            raise failures.bad_request(f"error decoding YAML: {', '.join(repeated)}")
        call.warnings.extend(repeated)
        served = self.custom.served(call.kind) if call.kind.custom else None
        if served is not None:
            # Fields of the content are checked when it is merged, by the schema; it does not describe metadata.
            unknown = [path for path in crd.decode(document, served.raw, call.kind).unknown if "metadata." in path]
            if unknown and call.query.get("fieldValidation") == "Strict":
                raise fields.strict_refusal(call.kind, fields.problems(unknown, []))
        else:
            fields.decode(document, self._schema_of(call), call.kind)
        return document

    def applied(self, call: Call, live: Object | None, applied: Object, now: str) -> Object:
        """The result of a server-side apply to ``live``.

        Raises: Conflict where another manager owns a field; ApiError 400 without a field manager.
        """
        if not call.query.get("fieldManager"):
            raise failures.bad_request(
                'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch'
            )
        author = server_side.Author(call.manager, now, call.subresource, force=call.flag("force"))
        result: Object = server_side.apply(live, applied, self.schema(call.kind), author)
        if not call.kind.custom:
            result = fields.decode(result, self.schema(call.kind), call.kind).obj
        return result


def _repeated(call: Call, media_type: str, body: bytes) -> list[str]:
    """The problems with duplicate fields in a body; only searched when the client requests field validation."""
    if call.query.get("fieldValidation", "") not in ("Strict", "Warn"):
        return []
    if media_type == bodies.JSON:
        return fields.problems([], fields.duplicates(body))
    return bodies.repeated_keys(body) if media_type.endswith("yaml") else []
