"""Objects of the API as frozen values."""

import msgspec
import pytest

from podwire.model.meta import ObjectMeta, OwnerReference, controller_of, key_of
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.model.service import EndpointSlice, Service
from podwire.model.workload import Deployment, changed_status


def test_keys() -> None:
    assert key_of(ObjectMeta(name="a", namespace="b")) == "b/a"
    assert key_of(ObjectMeta(name="a")) == "a"


def test_the_controller_is_the_owner_that_says_so() -> None:
    owners = (OwnerReference(name="a"), OwnerReference(name="b", controller=True))
    result = controller_of(ObjectMeta(owner_references=owners))
    assert result is not None and result.name == "b"
    assert controller_of(ObjectMeta(owner_references=owners[:1])) is None


def test_unknown_fields_are_ignored_and_defaults_left_out() -> None:
    text = b'{"metadata":{"name":"a","managedFields":[{}]},"spec":{"clusterIP":"None","new":1}}'
    service = msgspec.json.decode(text, type=Service)
    assert service.headless
    assert msgspec.json.decode(msgspec.json.encode(service)) == {
        "metadata": {"name": "a"},
        "spec": {"clusterIP": "None"},
    }


def test_spellings_of_the_api_are_kept() -> None:
    document = {
        "spec": {
            "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "ipFamilies": ["IPv4"],
            "externalIPs": ["192.0.2.1"],
            "loadBalancerIP": "192.0.2.2", "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
            "ports": [{"port": 80, "targetPort": "http", "nodePort": 30080}],
        },
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.2", "ipMode": "VIP"}]}},
    }  # fmt: skip
    assert msgspec.json.decode(msgspec.json.encode(msgspec.convert(document, Service))) == document


def test_objects_are_values() -> None:
    item, other = Service(metadata=ObjectMeta(name="a")), Service(metadata=ObjectMeta(name="a"))
    assert item == other
    with pytest.raises(AttributeError):
        item.kind = "X"  # type: ignore[misc]


def test_a_slice_may_lack_its_lists() -> None:
    piece = msgspec.json.decode(b'{"addressType":"IPv4","endpoints":null,"ports":null}', type=EndpointSlice)
    assert piece.endpoints is None and piece.ports is None


def test_status_of_pods_and_nodes_is_decoded() -> None:
    pod = msgspec.convert(
        {
            "status": {
                "phase": "Running",
                "podIP": "10.244.0.5",
                "podIPs": [{"ip": "10.244.0.5"}, {"ip": "fd00::5"}],
                "conditions": [{"type": "Ready", "status": "True"}],
            }
        },
        Pod,
    )
    assert pod.ready and not pod.finished and pod.addresses == ("10.244.0.5", "fd00::5")
    assert msgspec.convert({"status": {"podIP": "10.244.0.5"}}, Pod).addresses == ("10.244.0.5",)
    assert Pod().addresses == () and not Pod().ready
    assert msgspec.convert({"status": {"phase": "Failed"}}, Pod).finished
    node = msgspec.convert(
        {
            "status": {
                "addresses": [
                    {"type": "Hostname", "address": "n"},
                    {"type": "InternalIP", "address": "192.0.2.1"},
                    {"type": "InternalIP", "address": "2001:db8::1"},
                ],
                "conditions": [{"type": "Ready", "status": "Unknown"}],
            }
        },
        Node,
    )
    assert node.internal_ips == ("192.0.2.1", "2001:db8::1") and not node.ready


def test_a_status_patch_holds_what_changed_only() -> None:
    old = msgspec.convert({"status": {"replicas": 3, "readyReplicas": 2}}, Deployment).status
    new = msgspec.convert({"status": {"replicas": 3, "updatedReplicas": 1}}, Deployment).status
    assert changed_status(old, new) == {"updatedReplicas": 1, "readyReplicas": 0}
    assert changed_status(old, old) == {}
