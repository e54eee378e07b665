"""CustomResourceDefinitions: the kinds that they add, their status, and their deletion.

The kinds of a definition are served as soon as the definition is written. Its versions become :class:`ResourceKind`
values beside the built-in kinds; all versions share the same objects. A name that another definition or a built-in kind
of the group uses is not accepted. A finalizer keeps a deleted definition until all its objects are deleted.
Source: ``k8s.io/apiextensions-apiserver`` (naming, establishing and finalizing controllers).
"""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import msgspec

from podwire.embedded.apiserver import crd
from podwire.embedded.apiserver.admission.webhookconfig import ClientConfig
from podwire.embedded.apiserver.cel.rules import RuleTree, compile_rules
from podwire.embedded.apiserver.conversionwebhooks import ConversionWebhook
from podwire.embedded.apiserver.customform import form_of
from podwire.embedded.apiserver.deletion import Deletion, set_condition
from podwire.embedded.apiserver.failures import Cause, invalid
from podwire.embedded.apiserver.kinds import KINDS, WRITE, Key, ResourceKind, Subresource
from podwire.embedded.apiserver.schema import data
from podwire.embedded.apiserver.store import ObjectChange, Store, StoredObject
from podwire.errors import ApiError
from podwire.runtime.clock import Clock, rfc3339

Object = dict[str, Any]

TABLE = "apiextensions.k8s.io/customresourcedefinitions"
FINALIZER = "customresourcecleanup.apiextensions.k8s.io"

_DEFINITIONS = KINDS["apiextensions.k8s.io", "v1", "customresourcedefinitions"]
_VERSION = re.compile(r"^v(\d+)(?:(alpha|beta)(\d+))?$")
_STAGES = {None: 2, "beta": 1, "alpha": 0}
_COMMON: Object = {
    "apiVersion": {"type": "string"},
    "kind": {"type": "string"},
    "metadata": {"$ref": "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"},
}


def _priority(version: str) -> tuple[int, int, int, str]:
    match = _VERSION.match(version)
    if match is None:
        return (-1, 0, 0, version)
    return (_STAGES[match[2]], int(match[1]), int(match[3] or 0), "")


def kinds_of(definition: Object) -> list[ResourceKind]:
    """The kinds that a definition serves, the preferred version first."""
    spec = definition["spec"]
    names = spec["names"]
    kinds = []
    for version in sorted(spec["versions"], key=lambda v: _priority(v["name"]), reverse=True):
        if not version.get("served"):
            continue
        subresources = []
        declared = version.get("subresources") or {}
        if "scale" in declared:
            subresources.append(Subresource("scale", "Scale", WRITE, "autoscaling", "v1"))
        if "status" in declared:
            subresources.append(Subresource("status", names["kind"], WRITE, spec["group"], version["name"]))
        kinds.append(
            ResourceKind(
                group=spec["group"], version=version["name"], kind=names["kind"], plural=names["plural"],
                webhook=(spec.get("conversion") or {}).get("strategy") == "Webhook",
                namespaced=spec.get("scope") == "Namespaced", custom=True,
                singular=names.get("singular") or names["kind"].lower(),
                short_names=tuple(names.get("shortNames") or ()), categories=tuple(names.get("categories") or ()),
                list_kind=names.get("listKind") or f"{names['kind']}List", subresources=tuple(subresources),
                form=form_of(f"{spec['group']}/{version['name']}", version),
            )
        )  # fmt: skip
    return kinds


def problems(definition: Object) -> list[Cause]:
    """The fields that are missing or contradict each other, so that the definition cannot be served."""
    spec = definition.get("spec") or {}
    names = spec.get("names") or {}
    versions = spec.get("versions") or []
    problems = [
        Cause(f"spec.{path}", "FieldValueRequired", "Required value")
        for path, value in (
            ("group", spec.get("group")), ("scope", spec.get("scope")), ("versions", versions),
            ("names.plural", names.get("plural")), ("names.kind", names.get("kind")),
            *((f"versions[{i}].name", v.get("name")) for i, v in enumerate(versions)),
            *((f"versions[{i}].schema.openAPIV3Schema", (v.get("schema") or {}).get("openAPIV3Schema"))
              for i, v in enumerate(versions)),
        )
        if not value
    ]  # fmt: skip
    if spec.get("scope") not in (None, "", "Namespaced", "Cluster"):
        message = f'Unsupported value: "{spec["scope"]}": supported values: "Cluster", "Namespaced"'
        problems.append(Cause("spec.scope", "FieldValueNotSupported", message))
    if versions and sum(bool(v.get("storage")) for v in versions) != 1:
        message = f"Invalid value: {len(versions)}: must have exactly one version marked as storage version"
        problems.append(Cause("spec.versions", "FieldValueInvalid", message))
    expected_name, name = f"{names.get('plural')}.{spec.get('group')}", definition["metadata"].get("name")
    if name != expected_name:
        message = f'Invalid value: "{name}": must be spec.names.plural+"."+spec.group'
        problems.append(Cause("metadata.name", "FieldValueInvalid", message))
    return problems


class CustomVersion:
    """The properties of one version of a custom kind that :class:`ResourceKind` does not have."""

    __slots__ = ("columns", "conversion", "node", "raw", "rules", "scale")

    def __init__(self, version: Object, conversion: ConversionWebhook | None) -> None:
        self.conversion = conversion
        self.raw: Object = (version.get("schema") or {}).get("openAPIV3Schema") or {"type": "object"}
        self.rules: RuleTree | None = compile_rules(self.raw)
        self.columns: list[Object] | None = version.get("additionalPrinterColumns")
        self.scale: Object = (version.get("subresources") or {}).get("scale") or {}
        with_common = {**self.raw, "properties": {**(self.raw.get("properties") or {}), **_COMMON}}
        self.node = data.SchemaNode(with_common, data.definitions())


class CustomResources:
    """Keeps the served kinds in step with the stored definitions."""

    def __init__(self, store: Store, kinds: dict[Key, ResourceKind], clock: Clock) -> None:
        self._store = store
        self._kinds = kinds
        self._clock = clock
        self._served: dict[Key, CustomVersion] = {}
        self._waiting: set[str] = set()
        self._deletion = Deletion(store, clock)
        self.on_kinds: tuple[Callable[[], None], ...] = ()
        """Called when the served kinds have changed."""
        self.on_conversion: Callable[[str], None] = lambda _: None
        """Called with the table whose objects are converted differently from now on."""

    def start(self) -> None:
        """Serves the kinds that are defined, and follows the store from then on."""
        self._derive()
        self._store.on_write.append(self._written)
        self._store.on_rollback.append(self._derive)
        self._store.on_change.append(self._committed)
        for entry in self._store.entries(TABLE):
            self._consider(entry)

    def served(self, kind: ResourceKind) -> CustomVersion | None:
        """Schema and columns of a custom kind."""
        return self._served.get((kind.group, kind.version, kind.plural))

    def webhook_of(self, kind: ResourceKind) -> ConversionWebhook | None:
        """The webhook that converts objects of a kind."""
        version = self.served(kind)
        return version.conversion if version is not None else None

    def pruned(self, kind: ResourceKind, obj: Object) -> Object:
        """An object of a custom kind without the fields that its version does not have."""
        version = self.served(kind)
        pruned_object: Object = crd.prune(obj, version.raw).obj if version is not None else obj
        return pruned_object

    def scale_paths(self, kind: ResourceKind) -> Object:
        """The ``scale`` subresource of a custom kind; empty for other kinds."""
        version = self.served(kind) if kind.custom else None
        return version.scale if version is not None else {}

    def schemas(self) -> dict[tuple[str, str, str], Object]:
        """The raw schemas by group, version and kind."""
        return {
            (kind.group, kind.version, kind.kind): self._served[key].raw
            for key, kind in self._kinds.items()
            if key in self._served
        }

    # -- registration

    def _derive(self) -> None:
        for key in [key for key, kind in self._kinds.items() if kind.custom]:
            del self._kinds[key]
        self._served.clear()
        for entry in self._store.entries(TABLE):
            self._register(entry.object())
        self._tell()

    def _written(self, change: ObjectChange) -> None:
        if change.entry.table != TABLE:
            return
        if change.before is not None:
            before = change.before.object()
            if change.type != "DELETED" and before["spec"] == change.entry.object()["spec"]:
                return
            for kind in kinds_of(before):
                self._kinds.pop((kind.group, kind.version, kind.plural), None)
                self._served.pop((kind.group, kind.version, kind.plural), None)
            self._reconvert(before, change)
        if change.type != "DELETED":
            self._register(change.entry.object())
        self._tell()

    def _reconvert(self, before: Object, change: ObjectChange) -> None:
        """Ends the watches of a table whose conversion has changed, and drops its converted objects."""
        after = change.entry.object()["spec"]
        table = f"{after['group']}/{after['names']['plural']}"
        if change.type != "DELETED" and before["spec"]["versions"] != after["versions"]:
            self.on_conversion(table)
        if "Webhook" not in ((spec.get("conversion") or {}).get("strategy") for spec in (before["spec"], after)):
            return
        for entry in self._store.table(table).objects.values():
            entry.drop_converted()
        self.on_conversion(table)

    def _register(self, definition: Object) -> None:
        if not _accepted(definition):
            return
        versions = {version["name"]: version for version in definition["spec"]["versions"]}
        webhook = _conversion_webhook(definition["spec"])
        for kind in kinds_of(definition):
            key = (kind.group, kind.version, kind.plural)
            self._kinds[key] = kind
            self._served[key] = CustomVersion(versions[kind.version], webhook)

    def _tell(self) -> None:
        for observer in self.on_kinds:
            observer()

    def establish(self, definition: Object, old: Object | None) -> None:
        """Sets names, stored versions and conditions in a definition that is about to be stored.

        Raises: Invalid for a definition that could not be served.
        """
        invalid_fields = problems(definition)
        if invalid_fields:
            raise invalid(_DEFINITIONS, definition["metadata"].get("name", ""), invalid_fields)
        spec, meta = definition["spec"], definition["metadata"]
        names = spec["names"]
        names.setdefault("singular", names["kind"].lower())
        names.setdefault("listKind", f"{names['kind']}List")
        if old is None and FINALIZER not in (meta.get("finalizers") or ()):
            meta["finalizers"] = [*(meta.get("finalizers") or ()), FINALIZER]
        status = definition.setdefault("status", {})
        stored_versions = list(status.get("storedVersions") or ())
        storage_versions = [version["name"] for version in spec["versions"] if version.get("storage")]
        stored_versions += [name for name in storage_versions if name not in stored_versions]
        status["storedVersions"] = stored_versions
        conflict = self._name_conflict(definition)
        now = rfc3339(self._clock.now())
        if conflict:
            set_condition(status, "NamesAccepted", "False", ("NameConflict", conflict), now)
            set_condition(status, "Established", "False", ("NotAccepted", "not all names are accepted"), now)
            status.setdefault("acceptedNames", {"plural": "", "kind": ""})
            return
        status["acceptedNames"] = dict(names)
        set_condition(status, "NamesAccepted", "True", ("NoConflicts", "no conflicts found"), now)
        message = "the initial names have been accepted"
        set_condition(status, "Established", "True", ("InitialNamesAccepted", message), now)

    def _name_conflict(self, definition: Object) -> str:
        """Why the names cannot be accepted; empty where they can."""
        group, names = definition["spec"]["group"], definition["spec"]["names"]
        for kind in self._kinds.values():
            if kind.group != group or (kind.table == f"{group}/{names['plural']}" and kind.custom):
                continue
            if kind.plural == names["plural"]:
                return f'"{names["plural"]}" is already in use'
            if kind.kind == names["kind"]:
                return f'"{names["kind"]}" is already in use'
        return ""

    # -- the end of a definition

    def _committed(self, change: ObjectChange) -> None:
        entry = change.entry
        if entry.table == TABLE and change.type != "DELETED":
            self._consider(entry)
        elif self._waiting and change.type == "DELETED" and entry.table in self._waiting:
            definition = self._store.get(TABLE, "", _definition_name(entry.table))
            if definition is not None:
                self._consider(definition)

    def _consider(self, entry: StoredObject) -> None:
        if b'"deletionTimestamp"' not in entry.raw:
            return
        obj = entry.object()
        if obj["metadata"].get("deletionTimestamp") and FINALIZER in (obj["metadata"].get("finalizers") or ()):
            asyncio.get_running_loop().call_soon(self._empty, entry.name)

    def _empty(self, name: str) -> None:
        """Deletes the objects of a definition that is being deleted; removes its finalizer when none is left."""
        entry = self._store.get(TABLE, "", name)
        if entry is None:
            return
        obj = entry.object()
        table = f"{obj['spec']['group']}/{obj['spec']['names']['plural']}"
        self._waiting.add(table)
        kind = next((kind for kind in self._kinds.values() if kind.table == table), None)
        remaining = False
        for custom_object in self._store.entries(table) if kind is not None else ():
            try:
                remaining = not self._deletion.delete(kind, custom_object, {})[1] or remaining  # type: ignore[arg-type]
            except ApiError:
                remaining = True
        if remaining:
            return
        self._waiting.discard(table)
        meta = obj["metadata"]
        meta["finalizers"] = [f for f in meta.get("finalizers") or () if f != FINALIZER]
        if meta["finalizers"]:
            self._store.put(TABLE, obj)
        elif self._store.get(TABLE, "", name) is not None:
            self._store.delete(entry, obj)


def _conversion_webhook(spec: Object) -> ConversionWebhook | None:
    conversion = spec.get("conversion") or {}
    if conversion.get("strategy") != "Webhook":
        return None
    storage = next(version["name"] for version in spec["versions"] if version.get("storage"))
    named = {f"{spec['group']}/{version['name']}": version for version in spec["versions"]}
    forms = {name: form for name, version in named.items() if (form := form_of(name, version)) is not None}
    client = msgspec.convert(conversion["webhook"]["clientConfig"], ClientConfig)
    return ConversionWebhook(
        f"{spec['group']}/{storage}", client, tuple(conversion["webhook"]["conversionReviewVersions"]), forms
    )


def _accepted(definition: Object) -> bool:
    conditions = (definition.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Established" and c.get("status") == "True" for c in conditions)


def _definition_name(table: str) -> str:
    group, _, plural = table.partition("/")
    return f"{plural}.{group}"
