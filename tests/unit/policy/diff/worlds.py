"""A cluster of two nodes, as manifests, and policies for it."""

import yaml

from podwire.cluster.world import World
from podwire.local.manifests import parse_manifests
from podwire.local.offline.cluster import describe_manifests

CLUSTER = """
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {role: worker}}
status: {addresses: [{type: InternalIP, address: 192.168.99.1}]}
---
apiVersion: v1
kind: Node
metadata: {name: n2, labels: {role: gateway}}
status: {addresses: [{type: InternalIP, address: 192.168.99.2}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 4
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db}}
spec: {nodeName: n1, containers: [{name: c, image: i, ports: [{name: sql, containerPort: 5432}]}]}
"""


def world(*policies: str, cluster: str = CLUSTER) -> World:
    """The cluster with NetworkPolicies, each ``namespace/name: spec`` as YAML without the outer braces."""
    texts = [cluster]
    for policy in policies:
        name, _, spec = policy.partition(": ")
        namespace, _, short = name.rpartition("/")
        kind = ("networking.k8s.io/v1", "NetworkPolicy")
        body = yaml.load("{" + spec + "}", yaml.CSafeLoader)
        if not namespace:
            kind = ("policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy")
            body = {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}}, **body}
        meta = {"name": short} | ({"namespace": namespace} if namespace else {})
        texts.append(yaml.safe_dump({"apiVersion": kind[0], "kind": kind[1], "metadata": meta, "spec": body}))
    return describe_manifests(parse_manifests("\n---\n".join(texts), "test.yaml")).world
