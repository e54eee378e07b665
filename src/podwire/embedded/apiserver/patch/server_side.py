"""Server-side apply, and which manager owns which field.

Each manager of an object owns a set of fields, kept in ``metadata.managedFields``: with operation ``Apply`` the
fields of its last configuration, with operation ``Update`` those that its writes set or changed.

An apply merges the configuration into the live object. It removes fields that the manager's last configuration had and
this one lacks, unless another manager owns them. It fails when it changes a field that another manager owns, except
with ``force``, which transfers such fields to the applying manager. When an apply sets a field to the value that it
already has, both managers own the field. Any other write (:func:`track`) never conflicts: the manager that changes a
field owns the field from then on.

Two rules exist for older versions of kubectl. An object without managed fields counts as owned by
``before-first-apply``. When manager ``kubectl`` applies over an object that it managed by client-side apply, conflicts
about fields in its last-applied annotation are ignored.

Sources: ``structured-merge-diff/merge/update.go``; ``apimachinery/pkg/util/managedfields``. One apply costs a few
passes over the object; a plain write one comparison of the old and the new object.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from podwire.embedded.apiserver.patch import fieldset, typed
from podwire.embedded.apiserver.patch.fieldset import Node
from podwire.embedded.apiserver.schema.data import SchemaNode
from podwire.errors import ApiError, Conflict

Json = dict[str, Any]

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_UNTRACKED = tuple(
    ("f:metadata", f"f:{name}")
    for name in (
        "name", "namespace", "creationTimestamp", "selfLink", "uid", "clusterName", "generation",
        "managedFields", "resourceVersion",
    )
)  # fmt: skip
_NAME: Node = {"f:metadata": {"f:name": dict(fieldset.LEAF)}}
"""Always kept, so that metadata is never removed as a whole."""
_STRUCTS = ("metadata", "spec", "status", "template", "strategy", "updateStrategy", "jobTemplate")
_MOST_UPDATERS = 10


class Author(NamedTuple):
    """The manager that writes, the time (RFC 3339, seconds), and the subresource; only an apply may ``force``."""

    manager: str
    now: str
    subresource: str = ""
    force: bool = False


class FieldManager(NamedTuple):
    """A field manager: the identity of one entry of the managed fields."""

    name: str
    operation: str
    version: str
    subresource: str = ""

    def __str__(self) -> str:
        through = f' with subresource "{self.subresource}"' if self.subresource else ""
        if self.operation == "Update":
            return f'"{self.name}"{through} using {self.version}'
        return f'"{self.name}"{through}'


class ManagedFields(NamedTuple):
    """The fields that a manager owns, and when they last changed."""

    fields: Node
    time: str


FieldManagers = dict[FieldManager, ManagedFields]


def parse(entries: Any) -> FieldManagers:
    """The managers in a ``managedFields`` list; entries that cannot be read are left out."""
    out: FieldManagers = {}
    for entry in entries or ():
        raw = entry.get("fieldsV1") if isinstance(entry, dict) else None
        if not isinstance(raw, dict) or not entry.get("operation"):
            continue
        manager = FieldManager(
            entry.get("manager", ""),
            entry["operation"],
            entry.get("apiVersion", ""),
            entry.get("subresource", ""),
        )
        out[manager] = ManagedFields({key: fieldset.load(sub) for key, sub in raw.items()}, entry.get("time") or "")
    return out


def render(managers: FieldManagers) -> list[Json]:
    """The ``managedFields`` list: applies first, then by time and name; managers without fields are left out."""

    def order(item: tuple[FieldManager, ManagedFields]) -> tuple[str, str, FieldManager]:
        manager, managed = item
        return manager.operation, managed.time, manager

    return [_entry(manager, managed) for manager, managed in sorted(managers.items(), key=order) if managed.fields]


def _entry(manager: FieldManager, managed: ManagedFields) -> Json:
    out: Json = {
        "manager": manager.name,
        "operation": manager.operation,
        "apiVersion": manager.version,
        "time": managed.time,
        "fieldsType": "FieldsV1",
        "fieldsV1": {key: fieldset.dump(managed.fields[key]) for key in sorted(managed.fields)},
    }
    return {**out, "subresource": manager.subresource} if manager.subresource else out


def _content(obj: Json) -> Json:
    """The part of an object whose fields are tracked."""
    return {key: value for key, value in obj.items() if key not in ("apiVersion", "kind")}


def _tracked(fields: Node, schema: SchemaNode, subresource: str) -> Node:
    """The fields without those that are never tracked, and those that a write of this subresource does not set."""
    fields = fieldset.without(fields, *_UNTRACKED)
    meta = fields.get("f:metadata")
    if meta is not None and fieldset.MEMBER in meta:
        meta = {key: sub for key, sub in meta.items() if key != fieldset.MEMBER}
        fields = {**fields, "f:metadata": meta}
        if not meta:
            del fields["f:metadata"]
    if subresource == "status":
        return fieldset.without(fields, ("f:spec",))
    return fields if subresource or not schema.name else fieldset.without(fields, ("f:status",))


def _blank(schema: SchemaNode) -> Json:
    """The fields that Go encodes for an empty object: the structs that are not pointers.

    A new object is compared with it, so that only the fields of these structs have a manager, not the structs.
    Custom objects are not structs: everything but their metadata has a manager.
    """
    if not schema.name:
        return {"metadata": {}}
    out: Json = {}
    for name in _STRUCTS:
        sub = schema.properties.get(name)
        if sub is not None and sub.properties:
            out[name] = _blank(sub)
    if "containers" in schema.properties:
        out["containers"] = []
    return out


def _subtract(managers: FieldManagers, fields: Node, but: FieldManager) -> FieldManagers:
    """The managers after all but one lost the given fields."""
    out: FieldManagers = {}
    for manager, managed in managers.items():
        rest = managed.fields if manager == but else fieldset.difference(managed.fields, fields)
        if rest:
            out[manager] = ManagedFields(rest, managed.time)
    return out


def _is_reset(entries: Any) -> bool:
    return isinstance(entries, list) and len(entries) == 1 and not any(entries[0].values())


def track(old: Json | None, new: Json, schema: SchemaNode, author: Author) -> None:
    """Set ``metadata.managedFields`` of ``new`` for a write that is no apply.

    A list of one empty entry, sent by the client, clears it.
    """
    meta = new.setdefault("metadata", {})
    if _is_reset(meta.get("managedFields")):
        del meta["managedFields"]
        return
    past = (old or {}).get("metadata", {}).get("managedFields")
    managers = parse(meta.get("managedFields") or past)
    before = _content(old) if old is not None else _blank(schema)
    comparison = typed.compare(before, _content(new), schema)
    me = FieldManager(author.manager, "Update", new.get("apiVersion", ""), author.subresource)
    changed = _tracked(comparison.changed, schema, author.subresource)
    managers = _subtract(managers, fieldset.union(changed, comparison.removed), me)
    mine = managers.get(me, ManagedFields({}, author.now))
    fields = fieldset.union(fieldset.difference(mine.fields, comparison.removed), changed)
    if fields != mine.fields:
        managers[me] = ManagedFields(fields, author.now)
    entries = render(_capped(managers))
    if entries:
        meta["managedFields"] = entries
    else:
        meta.pop("managedFields", None)


def _capped(managers: FieldManagers) -> FieldManagers:
    """The oldest updaters folded into one where there are too many."""
    updaters = sorted((managed.time, manager) for manager, managed in managers.items() if manager.operation == "Update")
    out = dict(managers)
    for _, manager in updaters[: max(0, len(updaters) - _MOST_UPDATERS)]:
        managed = out.pop(manager)
        ancient = FieldManager("ancient-changes", "Update", manager.version)
        past = out.get(ancient, ManagedFields({}, managed.time))
        out[ancient] = ManagedFields(fieldset.union(past.fields, managed.fields), managed.time)
    return out


def apply(live: Json | None, applied: Json, schema: SchemaNode, author: Author) -> Json:
    """The object that results from applying a configuration, managed fields included.

    Where nothing changes, ``live`` itself is returned. Neither argument is changed.
    Raises: Conflict where another manager owns a changed field and ``force`` is not set, with one cause a
    field; ApiError 400 for a configuration with managed fields, unknown fields or list items without keys.
    """
    _check(applied, schema)
    config = _without_nulls(applied)
    past: Json = live if live is not None else {}
    managers = parse(past.get("metadata", {}).get("managedFields"))
    if live is not None and not managers:
        everything = _tracked(typed.to_set(_content(live), schema), schema, "")
        managers[FieldManager("before-first-apply", "Update", live.get("apiVersion", ""))] = ManagedFields(
            everything, author.now
        )
    me = FieldManager(author.manager, "Apply", config.get("apiVersion", ""), author.subresource)
    mine = _tracked(typed.to_set(_content(config), schema), schema, author.subresource)
    last = _last(managers, me)
    other_managers = {manager: managed for manager, managed in managers.items() if not _same_applier(manager, me)}
    new: Json = typed.merge(past, config, schema)
    if last.fields:
        kept_fields = fieldset.union(mine, _NAME)
        for managed in other_managers.values():
            kept_fields = fieldset.union(kept_fields, managed.fields)
        new = typed.remove(new, schema, last.fields, kept_fields)
    other_managers = _settle(past, new, other_managers, schema, author)
    same = new == past and mine == last.fields
    managers = {**other_managers, me: ManagedFields(mine, last.time if same else author.now)}
    new["metadata"] = {**new.get("metadata", {}), "managedFields": render(managers)}
    return new


def _same_applier(manager: FieldManager, me: FieldManager) -> bool:
    """Whether both are applies of one manager, of whatever version."""
    return manager._replace(version="") == me._replace(version="")


def _last(managers: FieldManagers, me: FieldManager) -> ManagedFields:
    """The fields that the manager's last apply owned."""
    appliers = [managed for manager, managed in managers.items() if _same_applier(manager, me)]
    return appliers[0] if appliers else ManagedFields({}, me.version)


def _settle(past: Json, new: Json, other_managers: FieldManagers, schema: SchemaNode, author: Author) -> FieldManagers:
    """The other managers after the change: they lose the fields that were changed or removed.

    Raises: Conflict where they own a changed field and the author does not force the change.
    """
    before, after = _content(past), _content(new)
    comparison = typed.compare(before or _blank(schema), after, schema)
    changed = _tracked(comparison.changed, schema, author.subresource)
    conflicts = {
        manager: both
        for manager, managed in other_managers.items()
        if (both := fieldset.intersection(managed.fields, changed))
    }
    if conflicts and not author.force:
        allowed = _explained(past, schema) if author.manager == "kubectl" else {}
        rest = {
            manager: unsettled
            for manager, fields in conflicts.items()
            if (unsettled := fieldset.difference(fields, allowed))
        }
        if rest:
            raise conflict(rest)
    no_manager = FieldManager("", "", "")
    return _subtract(other_managers, fieldset.union(changed, comparison.removed), no_manager)


def _explained(live: Json, schema: SchemaNode) -> Node:
    """Fields of the last client-side apply whose values are still as it left them."""
    text = live.get("metadata", {}).get("annotations", {}).get(LAST_APPLIED)
    try:
        last = json.loads(text) if text else None
    except ValueError:
        return {}
    if not isinstance(last, dict):
        return {}
    config = _content(_without_nulls(last))
    comparison = typed.compare(config, _content(live), schema)
    differing = fieldset.union(comparison.changed, comparison.removed)
    return fieldset.difference(typed.to_set(config, schema), differing)


def _check(applied: Json, schema: SchemaNode) -> None:
    meta = applied.get("metadata")
    if isinstance(meta, Mapping) and meta.get("managedFields") is not None:
        raise ApiError(400, "BadRequest", "metadata.managedFields must be nil")
    unknown = [f"{path}: field not declared in schema" for path in typed.undeclared(applied, schema)]
    if unknown:
        meta = meta if isinstance(meta, Mapping) else {}
        name = "/".join(segment for segment in (meta.get("namespace"), meta.get("name")) if segment)
        kind = f"{applied.get('apiVersion')}, Kind={applied.get('kind')}"
        problem = unknown[0] if len(unknown) == 1 else "errors:\n" + "\n".join(f"  {text}" for text in unknown)
        message = f"failed to create typed patch object ({name}; {kind}): {problem}"
        raise ApiError(400, "BadRequest", message)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def conflict(conflicts: Mapping[FieldManager, Node]) -> Conflict:
    """Error 409 that names every manager and field in conflict."""
    owners = [(manager, path) for manager in sorted(conflicts) for path in fieldset.paths(conflicts[manager])]
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {manager}", "field": path}
        for manager, path in owners
    ]
    if len(owners) == 1:
        manager, path = owners[0]
        text = f"Apply failed with 1 conflict: conflict with {manager}: {path}"
    else:
        lines = "\n".join(_lines(owners))
        text = f"Apply failed with {len(owners)} conflicts: {lines}"
    return Conflict(409, "Conflict", text, {"causes": causes})


def _lines(conflicts: Iterable[tuple[FieldManager, str]]) -> Iterator[str]:
    last: FieldManager | None = None
    for manager, path in conflicts:
        if manager != last:
            yield f"conflicts with {manager}:"
        last = manager
        yield f"- {path}"
