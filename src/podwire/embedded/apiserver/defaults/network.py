"""Defaults of the network kinds.

Addresses, node ports and address families of a Service are not defaults but allocations: see ``allocate``.
"""

from podwire.embedded.apiserver.defaults.pods import Json, fill, items_of, section

_AFFINITY_S = 10_800


def fill_service(obj: Json) -> None:
    """Defaults of a Service."""
    spec = section(obj, "spec")
    fill(spec, {"sessionAffinity": "None", "type": "ClusterIP"})
    if spec["sessionAffinity"] == "None":
        spec.pop("sessionAffinityConfig", None)
    elif spec["sessionAffinity"] == "ClientIP":
        client = section(section(spec, "sessionAffinityConfig"), "clientIP")
        fill(client, {"timeoutSeconds": _AFFINITY_S})
    for port in items_of(spec, "ports"):
        fill(port, {"protocol": "TCP"})
        if port.get("targetPort") in (None, 0, "") and port.get("port") is not None:
            port["targetPort"] = port["port"]
    kind = spec["type"]
    outside = kind in ("NodePort", "LoadBalancer") or bool(kind == "ClusterIP" and spec.get("externalIPs"))
    if outside:
        fill(spec, {"externalTrafficPolicy": "Cluster"})
    if kind in ("ClusterIP", "NodePort", "LoadBalancer"):
        fill(spec, {"internalTrafficPolicy": "Cluster"})
    if kind == "LoadBalancer":
        fill(spec, {"allocateLoadBalancerNodePorts": True})
    fill(section(obj, "status"), {"loadBalancer": {}})
    for entry in items_of(obj["status"]["loadBalancer"], "ingress"):
        if entry.get("ip"):
            fill(entry, {"ipMode": "VIP"})


def fill_endpoints(obj: Json) -> None:
    """Defaults of Endpoints."""
    for subset in items_of(obj, "subsets"):
        for port in items_of(subset, "ports"):
            fill(port, {"protocol": "TCP"})


def fill_endpoint_slice(obj: Json) -> None:
    """Defaults of an EndpointSlice; Kubernetes always shows its two lists, as null when they are empty."""
    obj.setdefault("endpoints", None)
    obj.setdefault("ports", None)
    for port in items_of(obj, "ports"):
        fill(port, {"name": "", "protocol": "TCP"})


def fill_network_policy(obj: Json) -> None:
    """Defaults of a NetworkPolicy: it is about ingress, and about egress if it has such rules."""
    spec = section(obj, "spec")
    for rule in items_of(spec, "ingress", "egress"):
        for port in items_of(rule, "ports"):
            fill(port, {"protocol": "TCP"})
    if not spec.get("policyTypes"):
        spec["policyTypes"] = ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]
    if spec.get("podSelector") is None:
        spec["podSelector"] = {}


def fill_ingress(obj: Json) -> None:
    """Defaults of an Ingress."""
    fill(section(obj, "status"), {"loadBalancer": {}})


def fill_ingress_class(obj: Json) -> None:
    """Defaults of an IngressClass."""
    parameters = section(obj, "spec").get("parameters")
    if isinstance(parameters, dict):
        fill(parameters, {"scope": "Cluster"})
