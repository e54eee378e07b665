"""Objects that the API server should never have accepted: valid objects with one field replaced."""

from collections.abc import Iterator
from typing import Any

import msgspec

from podwire.errors import ProtocolError
from podwire.kube.decode import decode_object

META = {"name": "web", "namespace": "default", "uid": "u1", "resourceVersion": "7"}
SERVICE: dict[str, Any] = {
    "metadata": META | {"labels": {"app": "web"}, "annotations": {"service.kubernetes.io/topology-mode": "Auto"}},
    "spec": {
        "type": "LoadBalancer",
        "selector": {"app": "web"},
        "clusterIP": "10.96.0.10",
        "clusterIPs": ["10.96.0.10", "fd00:96::10"],
        "ipFamilies": ["IPv4", "IPv6"],
        "externalIPs": ["203.0.113.7", "2001:db8::7"],
        "ports": [
            {"name": "http", "protocol": "TCP", "port": 80, "targetPort": "web", "nodePort": 30080},
            {"name": "dns", "protocol": "UDP", "port": 53, "targetPort": 53, "nodePort": 30053},
        ],
        "externalTrafficPolicy": "Local",
        "internalTrafficPolicy": "Cluster",
        "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10800}},
        "loadBalancerSourceRanges": ["192.168.0.0/16", "2001:db8::/32"],
        "healthCheckNodePort": 31000,
    },
    "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.9", "ipMode": "VIP"}]}},
}
SLICE: dict[str, Any] = {
    "metadata": META
    | {
        "labels": {"kubernetes.io/service-name": "web"},
        "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z"},
    },
    "addressType": "IPv4",
    "ports": [{"name": "http", "protocol": "TCP", "port": 8080}, {"name": "dns", "protocol": "UDP", "port": 53}],
    "endpoints": [
        {
            "addresses": ["10.0.0.1"],
            "conditions": {"ready": True, "serving": True, "terminating": False},
            "hostname": "web-0",
            "nodeName": "n1",
            "zone": "z1",
            "hints": {"forZones": [{"name": "z1"}], "forNodes": [{"name": "n1"}]},
            "targetRef": {"kind": "Pod", "namespace": "default", "name": "web-0", "uid": "p1"},
        }
    ],
}
NODE: dict[str, Any] = {
    "metadata": {
        "name": "n1",
        "labels": {"topology.kubernetes.io/zone": "z1"},
        "annotations": {
            "podwire.io/routing-facts": '{"backend":"hostgw","receives":["vxlan"]}',
            "flannel.alpha.coreos.com/backend-data": '{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}',
            "flannel.alpha.coreos.com/backend-type": "vxlan",
            "flannel.alpha.coreos.com/kube-subnet-manager": "true",
            "flannel.alpha.coreos.com/public-ip": "192.168.99.1",
        },
    },
    "spec": {"podCIDR": "10.0.1.0/24", "podCIDRs": ["10.0.1.0/24", "fd00:1::/64"]},
    "status": {
        "addresses": [{"type": "InternalIP", "address": "192.168.99.1"}, {"type": "Hostname", "address": "n1"}],
        "allocatable": {"cpu": "4"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}
POD: dict[str, Any] = {
    "metadata": META | {"name": "web-0", "uid": "p1", "labels": {"app": "web"}},
    "spec": {
        "nodeName": "n1",
        "hostname": "web-0",
        "subdomain": "web",
        "containers": [{"name": "web", "ports": [{"name": "web", "containerPort": 8080, "protocol": "TCP"}]}],
    },
    "status": {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
        "hostIP": "192.168.99.1",
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}
POLICY: dict[str, Any] = {
    "metadata": META,
    "spec": {
        "podSelector": {
            "matchLabels": {"app": "web"},
            "matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}],
        },
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [
            {
                "from": [
                    {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
                    {"namespaceSelector": {"matchLabels": {"team": "a"}}, "podSelector": {}},
                ],
                "ports": [{"protocol": "TCP", "port": 80, "endPort": 90}, {"protocol": "UDP", "port": "web"}],
            }
        ],
        "egress": [{"to": [{"ipBlock": {"cidr": "2001:db8::/32"}}]}],
    },
}
NAMESPACE: dict[str, Any] = {"metadata": {"name": "default", "labels": {"team": "a"}, "annotations": {"a": "b"}}}

_TEXTS = (
    "", "None", " ", "x" * 300, "\x00", "ü", "a..b", "-", ".", "/", "10.0.0.300", "10.0.0", "010.0.0.1", "0.0.0.0",
    "127.0.0.1", "224.0.0.1", "255.255.255.255", "fd00::9", "::", "::1", "::ffff:10.0.0.1", "fe80::1%eth0", "10.0.0.9",
    "10.0.0.0/33", "10.0.0.1/8", "0.0.0.0/0", "::/0", "fe80::%eth0/64", "10.0.0.1/", "10.0.0.0/-1",
    "10.0.0.0/255.0.0.0",
    "IPv6", "IPv4", "FQDN", "ICMP", "tcp", "SCTP", "80", "-1", "70000", "1e400m", "nan", "inf", "{}", "[]", "null",
    '{"backend":7}', '{"backend":"ipip","tunnel":[]}', "9999-99-99T99:99:99Z", "2026-01-01T00:00:00",
    "Exists", "NotIn", "Gt",
)  # fmt: skip
_NUMBERS = (-(2**63), -70000, -1, 0, 1, 65535, 65536, 70000, 2**31, 2**32, 2**40, 2**64, 1.5)
_OTHERS: tuple[Any, ...] = (None, True, [], {}, [None], {"": ""})
VALUES: tuple[Any, ...] = (*_TEXTS, *_NUMBERS, *_OTHERS)
FEW_VALUES: tuple[Any, ...] = (
    "", "x" * 300, "\x00", "ü", "-", "/", "fe80::1%eth0", "10.0.0.0/33", "70000", "nan", "{}", -1, 0, 70000, 2**64,
    *_OTHERS,
)  # fmt: skip
"""For objects with very many fields, whose use takes milliseconds."""


def hostile(valid: dict[str, Any], kind: type[Any], values: tuple[Any, ...] = VALUES) -> Iterator[tuple[str, Any]]:
    """The decoded objects with their field path and value; those that cannot be decoded are left out by every part."""
    for label, changed in _changed(valid, values):
        try:
            yield label, decode_object(msgspec.json.encode(changed), kind)
        except ProtocolError:
            continue


def undecodable(valid: dict[str, Any], kind: type[Any]) -> Iterator[dict[str, Any]]:
    """The objects that cannot be decoded, as the API server would send them, once for each field."""
    fields: set[str] = set()
    for label, changed in _changed(valid, _OTHERS):
        field = label.partition("=")[0]
        try:
            decode_object(msgspec.json.encode(changed), kind)
        except ProtocolError:
            if field not in fields:
                fields.add(field)
                yield changed


def _changed(valid: dict[str, Any], values: tuple[Any, ...] = VALUES) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each field with each value, as the path and the value, and the object."""
    written = msgspec.json.encode(valid)
    for path in _paths(valid):
        for value in values:
            changed = msgspec.json.decode(written)
            holder: Any = changed
            for step in path[:-1]:
                holder = holder[step]
            holder[path[-1]] = value
            yield f"{'.'.join(map(str, path))}={value!r:.40}", changed


def _paths(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in entries:
        yield (*above, step)
        yield from _paths(inner, (*above, step))
