"""Names of objects whose form is not that of most objects."""

from typing import Any

import pytest

from podwire.embedded.apiserver.kinds import BY_KIND
from podwire.embedded.apiserver.validate import names
from podwire.embedded.apiserver.validate.network import check_ip_address
from podwire.embedded.apiserver.validate.objects import check

PARENT = {"resource": "services", "namespace": "default", "name": "web"}


def problems(api_version: str, kind: str, name: str, spec: Any) -> list[str]:
    group, _, version = api_version.rpartition("/")
    known = BY_KIND[group, version, kind]
    return [f"{c.field}: {c.message}" for c in check(known, {"metadata": {"name": name}, "spec": spec}, None)]


@pytest.mark.parametrize("name", ["web", "1web", "7", "0-0"])
def test_a_service_may_start_with_a_digit(name: str) -> None:
    assert problems("v1", "Service", name, {"type": "ClusterIP", "ports": [{"port": 80}]}) == []
    backend = {"defaultBackend": {"service": {"name": name, "port": {"number": 80}}}}
    assert problems("networking.k8s.io/v1", "Ingress", "web", backend) == []


@pytest.mark.parametrize("name", ["-web", "Web", "a.b", "a" * 64])
def test_a_service_is_one_dns_label(name: str) -> None:
    result = problems("v1", "Service", name, {"type": "ClusterIP", "ports": [{"port": 80}]})
    assert len(result) == 1 and result[0].startswith("metadata.name: Invalid value: ")


@pytest.mark.parametrize("name", ["10.96.0.7", "2001:db8::1", "fd00:96::", "::1"])
def test_an_ip_address_object_has_an_address_as_name(name: str) -> None:
    assert problems("networking.k8s.io/v1", "IPAddress", name, {"parentRef": PARENT}) == []


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("web", "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"),
        ("10.96.0.07", "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"),
        ("fe80::1%eth0", "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"),
        ("2001:DB8:0::1", 'must be in canonical form ("2001:db8::1")'),
        ("::ffff:10.0.0.1", "must not be an IPv4-mapped IPv6 address"),
    ],
)
def test_an_address_has_one_name(name: str, problem: str) -> None:
    assert names.canonical_ip(name) == problem


def test_an_ip_address_object_names_what_holds_it() -> None:
    def problems_of(new: object, old: object = None) -> list[str]:
        before = None if old is None else {"spec": {"parentRef": old}}
        return [f"{c.field}: {c.message}" for c in check_ip_address({"spec": {"parentRef": new}}, before)]

    assert problems_of(PARENT) == problems_of(PARENT, PARENT) == []
    assert problems_of(None) == ["spec.parentRef: Required value"]
    assert problems_of({}) == ["spec.parentRef.resource: Required value", "spec.parentRef.name: Required value"]
    assert problems_of({**PARENT, "group": "Bad Group"})[0].startswith("spec.parentRef.group: Invalid value")
    assert problems_of({**PARENT, "name": "a/b"}) == [
        "spec.parentRef.name: Invalid value: \"a/b\": may not contain '/'"
    ]
    assert problems_of({**PARENT, "name": "other"}, PARENT)[0].endswith("field is immutable")
