"""Restores the default roles and bindings at the start, and keeps aggregated ClusterRoles current.

A ClusterRole with an ``aggregationRule`` has the rules of all ClusterRoles that its selectors match, in the order of
their names. Sources: ``k8s.io/kubernetes/pkg/registry/rbac/rest``, ``pkg/controller/clusterroleaggregation``.
"""

import asyncio
from typing import Any

import msgspec

from podwire.embedded.apiserver.authorization import defaultobjects, policy
from podwire.embedded.apiserver.bootstrap import internal_call
from podwire.embedded.apiserver.kinds import KINDS, ResourceKind
from podwire.embedded.apiserver.store import ObjectChange, Store, StoredObject
from podwire.embedded.apiserver.waits import complete
from podwire.embedded.apiserver.writes import Writer
from podwire.model.selector import LabelSelector

Object = dict[str, Any]

_KINDS = {table: KINDS[policy.GROUP, "v1", table.partition("/")[2]] for table in sorted(policy.TABLES)}
_ROLE = _KINDS[policy.CLUSTER_ROLES]


def ensure_defaults(store: Store, writer: Writer) -> None:
    """Creates the default roles and bindings that are missing, and completes those that lack something."""
    now, manager = writer.now(), ""
    for table, default in defaultobjects.objects():
        kind, meta = _KINDS[table], default["metadata"]
        entry = store.get(table, meta.get("namespace", ""), meta["name"])
        if entry is not None and "roleRef" in default and entry.object().get("roleRef") != default["roleRef"]:
            store.delete(entry)
            entry = None
        if entry is None:
            manager = manager or internal_call(kind, "").manager
            store.put(table, defaultobjects.as_created(default, kind.kind, manager, now))
            continue
        new = defaultobjects.completed(entry.object(), default)
        if new is not None:
            _replace(writer, kind, entry, new)


def _replace(writer: Writer, kind: ResourceKind, entry: StoredObject, new: Object) -> None:
    complete(writer.replace(internal_call(kind, entry.namespace, entry.name), new, entry))


class Aggregation:
    """Gives ClusterRoles with an ``aggregationRule`` their rules."""

    def __init__(self, store: Store, writer: Writer) -> None:
        self._store = store
        self._writer = writer
        self._scheduled = False

    def start(self) -> None:
        """Brings every ClusterRole up to date, and follows changes from then on."""
        while self._collect_all():
            pass
        self._store.on_change.append(self._observe)

    def _observe(self, change: ObjectChange) -> None:
        if change.entry.table == policy.CLUSTER_ROLES and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        self._collect_all()

    def _collect_all(self) -> bool:
        """Updates every aggregated role once. Returns whether the rules of any role changed."""
        entries = self._store.entries(policy.CLUSTER_ROLES)
        collecting = [entry for entry in entries if b'"aggregationRule"' in entry.raw]
        return sum(self._collect(entry, entries) for entry in collecting) > 0

    def _collect(self, entry: StoredObject, entries: list[StoredObject]) -> bool:
        role = entry.object()
        selectors = ((role.get("aggregationRule") or {}).get("clusterRoleSelectors")) or ()
        matching = [msgspec.convert(selector, LabelSelector).requirements() for selector in selectors]
        rules: list[Object] = []
        for other in entries:
            if other.name != entry.name and any(selector.matches(other.labels) for selector in matching):
                rules += (rule for rule in other.object().get("rules") or () if rule not in rules)
        if not role.get("aggregationRule") or rules == (role.get("rules") or []):
            return False
        role["rules"] = rules
        _replace(self._writer, _ROLE, entry, role)
        return True
