"""Objects as kubectl encodes them, back in their JSON form."""

from base64 import b64decode
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.embedded.apiserver import protobuf
from podwire.embedded.apiserver.schema import data
from podwire.errors import ApiError

META = "io.k8s.apimachinery.pkg.apis.meta.v1."


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def special(kind: str, value: Any) -> bytes | None:
    """Messages whose JSON form is no object."""
    if kind.endswith("resource.Quantity"):
        return field(1, str(value).encode())
    if kind.endswith("IntOrString"):
        return field(1, 1) + field(3, value.encode()) if isinstance(value, str) else field(1, 0) + field(2, value)
    if kind == META + "Time":
        return field(1, 1_700_000_000)
    return None


def scalar(kind: str, value: Any) -> int | bytes:
    if kind in ("int", "bool"):
        return int(value)
    return b64decode(value) if kind == "bytes" else str(value).encode()


def encode_value(kind: str, value: Any, table: Mapping[str, Any]) -> int | bytes:
    if "." not in kind:
        return scalar(kind, value)
    result = special(kind, value)
    return encode(kind, value, table) if result is None else result


def encode(name: str, obj: dict[str, Any], table: Mapping[str, Any]) -> bytes:
    """What Go would send for the object."""
    out = b""
    for number, (key, kind) in table[name].items():
        number = int(number)
        if kind.startswith("^"):
            inner = encode(kind[1:], obj, table)
            out += field(number, inner) if inner else b""
        elif key not in obj:
            continue
        elif kind.startswith("[]"):
            out += b"".join(field(number, encode_value(kind[2:], item, table)) for item in obj[key])
        elif kind.startswith("{}"):
            for k, v in obj[key].items():
                out += field(number, field(1, k.encode()) + field(2, encode_value(kind[2:], v, table)))
        else:
            out += field(number, encode_value(kind.lstrip("?"), obj[key], table))
    return out


def envelope(obj: dict[str, Any]) -> bytes:
    group, _, version = obj["apiVersion"].rpartition("/")
    name = data.names()[group, version, obj["kind"]]
    meta = field(1, obj["apiVersion"].encode()) + field(2, obj["kind"].encode())
    return b"k8s\x00" + field(1, meta) + field(2, encode(name, obj, data.read("protobuf.json.xz")))


PROBE = {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 5}
TEMPLATE = {
    "metadata": {"labels": {"app": "w"}},
    "spec": {
        "containers": [
            {
                "name": "c", "image": "i", "ports": [{"containerPort": 80}], "readinessProbe": PROBE,
                "resources": {"limits": {"cpu": "100m"}},
                "env": [{"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
            }
        ],
        "volumes": [{"name": "v", "emptyDir": {}}, {"name": "c", "configMap": {"name": "cm"}}],
        "automountServiceAccountToken": False,
    },
}  # fmt: skip
OBJECTS: list[dict[str, Any]] = [
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}, "spec": {}, "status": {}},
    {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1", "b": ""},
     "binaryData": {"x": "AAE="}},
    {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"k": "c2VjcmV0"}, "type": "Opaque"},
    {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "labels": {"app": "s"}},
     "spec": {"ports": [{"name": "80", "protocol": "TCP", "port": 80, "targetPort": 80},
                        {"name": "h", "port": 81, "targetPort": "http"}],
              "selector": {"app": "s"}, "type": "ClusterIP"}, "status": {"loadBalancer": {}}},
    {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
     "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "w"}}, "template": TEMPLATE, "strategy": {}}},
    {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "i"},
     "spec": {"rules": [{"host": "h", "http": {"paths": [{"path": "/", "pathType": "Prefix",
              "backend": {"service": {"name": "s", "port": {"number": 80}}}}]}}]}},
    {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "r"},
     "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]},
    {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "metadata": {},
     "spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}, "status": {"allowed": False}},
    {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {},
     "spec": {"audiences": ["a"], "expirationSeconds": 600}},
    {"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"},
     "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "d"}, "maxReplicas": 3}},
    {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "p"},
     "spec": {"minAvailable": "50%"}},
]  # fmt: skip


@pytest.mark.parametrize("obj", OBJECTS, ids=lambda obj: obj["kind"])
def test_round_trip(obj: dict[str, Any]) -> None:
    assert protobuf.decode(envelope(obj)) == obj


def test_zero_values_of_plain_fields_are_left_out() -> None:
    obj = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "generateName": "", "generation": 0},
           "spec": {"clusterIP": "", "publishNotReadyAddresses": False}}  # fmt: skip
    assert protobuf.decode(envelope(obj)) == {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {},
    }  # fmt: skip


def test_delete_options_of_any_group() -> None:
    body = field(1, 0) + field(4, b"Foreground")
    raw = b"k8s\x00" + field(1, field(1, b"apps/v1") + field(2, b"DeleteOptions")) + field(2, body)
    assert protobuf.decode(raw) == {
        "apiVersion": "apps/v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0,
        "propagationPolicy": "Foreground",
    }  # fmt: skip


def test_times_of_year_one() -> None:
    """Leases of Kubernetes' own suite have such times."""
    spec = field(4, field(1, (-62135596798) & (2**64 - 1)))
    raw = b"k8s\x00" + field(1, field(1, b"coordination.k8s.io/v1") + field(2, b"Lease")) + field(2, field(2, spec))
    assert protobuf.decode(raw)["spec"] == {"renewTime": "0001-01-01T00:00:02.000000Z"}


def test_times() -> None:
    name = META + "ObjectMeta"
    number = next(n for n, (key, _) in data.read("protobuf.json.xz")[name].items() if key == "creationTimestamp")
    meta = field(int(number), field(1, 1_700_000_000))
    raw = b"k8s\x00" + field(1, field(1, b"v1") + field(2, b"ConfigMap")) + field(2, field(1, meta))
    assert protobuf.decode(raw)["metadata"] == {"creationTimestamp": "2023-11-14T22:13:20Z"}


@pytest.mark.parametrize("raw", [b"", b"{}", b"k8s\x00", b"k8s\x00\xff", b"k8s\x00\x0a\x05ab"])
def test_malformed_bytes_get_status_400(raw: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        protobuf.decode(raw)
    assert caught.value.code == 400


@given(st.binary(max_size=80))
def test_any_bytes_decode_or_are_refused(body: bytes) -> None:
    raw = b"k8s\x00" + field(1, field(1, b"v1") + field(2, b"Pod")) + field(2, body)
    try:
        assert isinstance(protobuf.decode(raw), dict)
    except ApiError as failure:
        assert failure.code == 400


def enclosed(api_version: str, kind: str, message: bytes) -> bytes:
    return protobuf.MAGIC + field(1, field(1, api_version.encode()) + field(2, kind.encode())) + field(2, message)


def test_device_claims_are_read() -> None:
    request = field(1, b"gpu") + field(2, field(1, b"gpu.example.com") + field(4, 2))
    claim = field(1, field(1, b"x")) + field(2, field(1, field(1, request)))
    result = protobuf.decode(enclosed("resource.k8s.io/v1", "ResourceClaim", claim))
    exactly = {"deviceClassName": "gpu.example.com", "count": 2}
    assert result["spec"]["devices"]["requests"] == [{"name": "gpu", "exactly": exactly}]
