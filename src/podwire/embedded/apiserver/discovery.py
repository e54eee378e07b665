"""Discovery documents: the groups, versions and resources that are served, in the legacy and the aggregated form.

A document is made at its first request, and again when a CustomResourceDefinition or an extension API server changes
the kinds.
Sources: ``k8s.io/api/apidiscovery/v2``, ``metav1.APIResourceList``.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.aggregation.discovery import aggregated_version, ordered
from podwire.embedded.apiserver.aggregation.extensions import Extensions
from podwire.embedded.apiserver.kinds import GROUPS, Key, ResourceKind, Subresource
from podwire.http.message import Request, Response

Object = dict[str, Any]

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


def _storage_hash(kind: ResourceKind) -> str:
    return hashlib.sha256(f"{kind.table}/{kind.version}".encode()).hexdigest()[:11]


def _resource(kind: ResourceKind) -> Object:
    resource: Object = {
        "name": kind.plural, "singularName": kind.singular_name, "namespaced": kind.namespaced,
        "kind": kind.kind, "verbs": list(kind.verbs),
    }  # fmt: skip
    if kind.short_names:
        resource["shortNames"] = list(kind.short_names)
    if kind.categories:
        resource["categories"] = list(kind.categories)
    if kind.has_objects:
        resource["storageVersionHash"] = _storage_hash(kind)
    return resource


def _subresource(kind: ResourceKind, sub: Subresource) -> Object:
    subresource: Object = {
        "name": f"{kind.plural}/{sub.name}", "singularName": "", "namespaced": kind.namespaced,
        "kind": sub.kind, "verbs": list(sub.verbs),
    }  # fmt: skip
    if (sub.group, sub.version) != (kind.group, kind.version):
        subresource |= {"group": sub.group, "version": sub.version}
    return subresource


def _aggregated(kind: ResourceKind) -> Object:
    resource: Object = {
        "resource": kind.plural,
        "responseKind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular_name, "verbs": list(kind.verbs),
    }  # fmt: skip
    if kind.short_names:
        resource["shortNames"] = list(kind.short_names)
    if kind.categories:
        resource["categories"] = list(kind.categories)
    if kind.subresources:
        resource["subresources"] = [
            {
                "subresource": sub.name,
                "responseKind": {
                    "group": sub.group or kind.group, "version": sub.version, "kind": sub.kind,
                },
                "verbs": list(sub.verbs),
            }
            for sub in kind.subresources
        ]  # fmt: skip
    return resource


class DiscoveryDocuments:
    """The discovery documents of the kinds that are served now."""

    def __init__(self, kinds: Mapping[Key, ResourceKind], extensions: Extensions) -> None:
        self._kinds = kinds
        self._extensions = extensions
        self._documents: dict[tuple[str, ...], Response] = {}

    def changed(self) -> None:
        """Drops the documents; to be called when the kinds have changed."""
        self._documents.clear()

    def _versions(self) -> dict[str, list[str]]:
        versions: dict[str, list[str]] = {group: list(served) for group, served in GROUPS.items()}
        for kind in self._kinds.values():
            served = versions.setdefault(kind.group, [])
            if kind.version not in served:
                served.append(kind.version)
        return ordered(versions, self._extensions)

    def _in(self, group: str, version: str) -> Sequence[ResourceKind]:
        kinds = [k for k in self._kinds.values() if k.group == group and k.version == version]
        return sorted(kinds, key=lambda kind: kind.plural)

    def answer(self, request: Request) -> Response:
        """The document at the request's path, which has one to three segments.

        Raises: NotFound for a group or version that is not served.
        """
        segments = request.segments()
        accept, host = request.headers.get("accept", ""), request.headers.get("host", "")
        aggregated = "as=APIGroupDiscoveryList" in accept and "v=v2" in accept.replace("v2beta1", "")
        key = (*segments, "aggregated" if aggregated and len(segments) == 1 else "", host)
        response = self._documents.get(key)
        if response is None:
            if aggregated and len(segments) == 1:
                document, content_type = self._groups_aggregated(legacy=segments[0] == "api"), AGGREGATED
            else:
                document, content_type = self._legacy(segments, host), "application/json"
            body = msgspec.json.encode(document)
            tag = hashlib.sha256(body).hexdigest().upper()[:32]
            response = Response(200, body, content_type, (("Etag", f'"{tag}"'), ("Vary", "Accept")))
            self._documents[key] = response
        return response

    def _groups_aggregated(self, *, legacy: bool) -> Object:
        items = [
            {
                "metadata": {"name": group, "creationTimestamp": None} if group else {"creationTimestamp": None},
                "versions": [self._version_aggregated(group, version) for version in versions],
            }
            for group, versions in self._versions().items()
            if (not group) == legacy
        ]  # fmt: skip
        return {
            "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {},
            "items": items,
        }  # fmt: skip

    def _version_aggregated(self, group: str, version: str) -> Object:
        foreign = aggregated_version(self._extensions, group, version)
        if foreign is not None:
            return foreign
        resources = [_aggregated(kind) for kind in self._in(group, version)]
        return {"version": version, "freshness": "Current", "resources": resources}

    def _legacy(self, segments: list[str], host: str) -> Object:
        if segments == ["api"]:
            return {
                "kind": "APIVersions", "versions": ["v1"],
                "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": host}],
            }  # fmt: skip
        if segments == ["apis"]:
            groups = [self._group(group) for group in self._versions() if group]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        versions = self._versions()
        if segments[0] == "apis" and len(segments) == 2 and segments[1] in versions and segments[1]:
            return {"kind": "APIGroup", "apiVersion": "v1", **self._group(segments[1])}
        group, version = ("", segments[1]) if segments[0] == "api" else (segments[1], segments[-1])
        if (segments[0] == "apis" and len(segments) != 3) or version not in versions.get(group, ()):
            raise failures.no_resource()
        return self._resources(group, version)

    def _group(self, group: str) -> Object:
        versions = [{"groupVersion": f"{group}/{version}", "version": version} for version in self._versions()[group]]
        return {"name": group, "versions": versions, "preferredVersion": versions[0]}

    def _resources(self, group: str, version: str) -> Object:
        resources: list[Object] = []
        for kind in self._in(group, version):
            resources.append(_resource(kind))
            resources.extend(_subresource(kind, sub) for sub in kind.subresources)
        return {
            "kind": "APIResourceList", "apiVersion": "v1",
            "groupVersion": f"{group}/{version}" if group else version, "resources": resources,
        }  # fmt: skip
