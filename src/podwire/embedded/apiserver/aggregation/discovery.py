"""Discovery of extensions among the groups that this server serves itself.

The order is that of Kubernetes: groups by their priority, versions by theirs, and then by their names (``v2``, ``v1``,
``v2beta1``, ``v1alpha1``). Sources: ``k8s.io/kube-aggregator/pkg/apiserver/handler_discovery.go``,
``k8s.io/apiserver/pkg/endpoints/discovery/aggregated``.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from podwire.embedded.apiserver.aggregation.extensions import Extensions
from podwire.embedded.apiserver.aggregation.local import group_priority, version_priority

Object = dict[str, Any]

_VERSION = re.compile(r"^v(\d+)(?:(alpha|beta)(\d+))?$")
_STAGES = {None: 2, "beta": 1, "alpha": 0}


def maturity(version: str) -> tuple[int, int, int]:
    """The sort key of a version: generally available versions are greater than betas, and betas than alphas."""
    match = _VERSION.match(version)
    return (-1, 0, 0) if match is None else (_STAGES[match[2]], int(match[1]), int(match[3] or 0))


def ordered(own: Mapping[str, list[str]], extensions: Extensions) -> dict[str, list[str]]:
    """Groups with their versions, of this server and of extensions, the preferred ones first."""
    groups = {group: list(versions) for group, versions in own.items()}
    priorities = {group: group_priority(group) for group in groups}
    version_priorities: dict[tuple[str, str], int] = {}
    for extension in extensions.all():
        versions = groups.setdefault(extension.group, [])
        if extension.version not in versions:
            versions.append(extension.version)
        version_priorities[extension.group, extension.version] = extension.version_priority
        priorities[extension.group] = max(priorities.get(extension.group, 0), extension.group_priority)
    for group in {extension.group for extension in extensions.all()}:

        def rank(version: str, group: str = group) -> tuple[int, tuple[int, int, int]]:
            return version_priorities.get((group, version), version_priority(group, version)), maturity(version)

        groups[group].sort(key=rank, reverse=True)
    return {group: groups[group] for group in sorted(groups, key=lambda group: (-priorities[group], group))}


def aggregated_version(extensions: Extensions, group: str, version: str) -> Object | None:
    """The entry of an extension in the aggregated form; None for a version that this server serves."""
    extension = extensions.serving(group, version)
    if extension is None:
        return None
    listed = extensions.documents(extension).resources
    fresh = "Current" if extensions.is_available(extension) else "Stale"
    return {"version": version, "freshness": fresh, "resources": _resources(listed, group, version)}


def _resources(listed: Iterable[Object], group: str, version: str) -> list[Object]:
    resources: dict[str, Object] = {}
    for item in sorted(listed, key=lambda item: "/" in str(item.get("name", ""))):
        name, _, subresource = str(item.get("name", "")).partition("/")
        kind = {"group": item.get("group") or group, "version": item.get("version") or version,
                "kind": item.get("kind", "")}  # fmt: skip
        if subresource:
            if name in resources:
                entry = {"subresource": subresource, "responseKind": kind, "verbs": list(item.get("verbs") or ())}
                resources[name].setdefault("subresources", []).append(entry)
            continue
        resources[name] = {
            "resource": name, "responseKind": kind, "scope": "Namespaced" if item.get("namespaced") else "Cluster",
            "singularResource": item.get("singularName") or "", "verbs": list(item.get("verbs") or ()),
            **{key: item[key] for key in ("shortNames", "categories") if item.get(key)},
        }  # fmt: skip
    return list(resources.values())
