"""A small cluster that policies of the tests are written for."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import yaml

from podwire.local.manifests import parse_manifests
from podwire.local.offline.cluster import describe_manifests
from podwire.policy.check.context import ClusterDetails, ClusterIndex
from podwire.policy.check.finding import Finding

CLUSTER = """
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {team: sales}}
---
apiVersion: v1
kind: Namespace
metadata: {name: blog, labels: {team: press}}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web, tier: front}}
spec: {containers: [{name: c, image: i, ports: [{name: http, containerPort: 8080}]}]}
status: {podIP: 10.244.0.2, podIPs: [{ip: 10.244.0.2}, {ip: "fd10::2"}], phase: Running}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db}}
spec: {containers: [{name: c, image: i, ports: [{name: sql, containerPort: 5432}, {containerPort: 9187}]}]}
status: {podIP: 10.244.0.3, podIPs: [{ip: 10.244.0.3}, {ip: "fd10::3"}], phase: Running}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: blog, labels: {app: web, role: reader}}
spec: {containers: [{name: c, image: i, ports: [{name: http, containerPort: 8080}]}]}
status: {podIP: 10.244.0.4, podIPs: [{ip: 10.244.0.4}, {ip: "fd10::4"}], phase: Running}
---
apiVersion: v1
kind: Pod
metadata: {name: agent, namespace: shop, labels: {app: agent}}
spec: {hostNetwork: true, containers: [{name: c, image: i}]}
status: {podIP: 192.168.0.1, phase: Running}
---
apiVersion: v1
kind: Pod
metadata: {name: job, namespace: shop, labels: {app: job}}
spec: {containers: [{name: c, image: i}]}
status: {podIP: 10.244.0.5, phase: Succeeded}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.80, selector: {app: web}, ports: [{port: 80, targetPort: http}]}
"""

Check = Callable[[ClusterIndex], Iterator[Finding]]


def policy(name: str, spec: str, **annotations: str) -> dict[str, Any]:
    """A NetworkPolicy, by ``namespace/name`` and its spec as YAML; a name without namespace is a cluster policy's."""
    namespace, _, short = name.rpartition("/")
    meta: dict[str, Any] = {
        "name": short,
        "annotations": {f"podwire.io/{key}": text for key, text in annotations.items()},
    }
    if namespace:
        meta["namespace"] = namespace
        return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": meta, "spec": _read(spec)}
    body = {"tier": "Admin", "priority": 10, "subject": {"namespaces": {}}, **_read(spec)}
    return {
        "apiVersion": "policy.networking.k8s.io/v1alpha2",
        "kind": "ClusterNetworkPolicy",
        "metadata": meta,
        "spec": body,
    }


def _read(spec: str) -> Any:
    return yaml.load("{" + spec + "}", yaml.CSafeLoader)


def index(*policies: dict[str, Any], cluster: str = CLUSTER, **details: Any) -> ClusterIndex:
    """The cluster with some policies; all of it is known, unless ``details`` says something else."""
    text = cluster + "".join(f"\n---\n{yaml.safe_dump(item)}" for item in policies)
    result = describe_manifests(parse_manifests(text, "test.yaml"))
    written = {f"{kind} {key}": manifest.body for (kind, key), manifest in result.manifests.items()}
    known = ClusterDetails(services=result.services, service_cidrs=result.service_cidrs, written=written)
    return ClusterIndex(result.world, msgspec.structs.replace(known, **details))


def findings_of(check: Check, *policies: dict[str, Any], **details: Any) -> list[tuple[str, str, str]]:
    """The findings of one check about some policies: kind, field and text."""
    return [(item.id, item.field, item.text) for item in check(index(*policies, **details))]


def ids(check: Check, *policies: dict[str, Any], **details: Any) -> list[tuple[str, str]]:
    """The same without the text."""
    return [item[:2] for item in findings_of(check, *policies, **details)]
