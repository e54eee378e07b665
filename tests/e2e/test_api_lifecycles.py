"""Every operation of the API on every kind, with real requests: what Kubernetes' conformance specs call API operations.

The kinds stand in ``tests/cases/conformance/lifecycles.yaml``.
"""

import base64
import copy
import itertools
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.e2e.connection import Connection
from tests.e2e.driver import eventually

Object = dict[str, Any]
CASES: dict[str, Object] = yaml.load(
    (Path(__file__).parents[1] / "cases/conformance/lifecycles.yaml").read_text(), Loader=yaml.CSafeLoader
)
_SELECTOR = {"lifecycle": "template"}
_CONTAINERS = [{"name": "c", "image": "nginx"}]
_NOWHERE = {"nodeSelector": {"there": "is-none"}, "containers": _CONTAINERS}
_COPIES = 3


class Kind(NamedTuple):
    """The kind under test: path of its objects, path of the kind in all namespaces, label of the test's objects."""

    api: Connection
    case: Object
    path: str
    everywhere: str
    label: str

    def path_of(self, name: str) -> str:
        return f"{self.path}/{name}"

    def listed(self, path: str = "") -> list[Object]:
        result: list[Object] = self.api.do("GET", path or self.path, labelSelector=f"lifecycle={self.label}")["items"]
        return result


@pytest.fixture(scope="module")
def place(api: Connection) -> Iterator[str]:
    """One namespace for all kinds."""
    name = f"lifecycles-{os.getpid()}"
    api.do("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    yield name
    api.ask("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
def kind(api: Connection, place: str, request: pytest.FixtureRequest) -> Iterator[Kind]:
    """The kind of the test's parameter; its objects are deleted after the test."""
    case = CASES[request.param]
    path = case["path"].replace("{}", place)
    label = request.param.lower().replace(" ", "-")
    created = Kind(api, case, path, case["path"].replace("/namespaces/{}", ""), label)
    yield created
    api.ask("DELETE", path, labelSelector=f"lifecycle={label}", gracePeriodSeconds="0")


def objects(kind: Kind, place: str, number: int = _COPIES) -> list[Object]:
    """New objects of a kind with the label of the test."""
    obj: Object = {
        "SELECTOR": _SELECTOR,
        "TEMPLATE": {"metadata": {"labels": _SELECTOR}, "spec": _NOWHERE},
        "NAMESPACE": place,
        "REQUEST": certificate_request(),
    }

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(item) for key, item in value.items()}
        if isinstance(value, list):
            return [filled(item) for item in value]
        return obj.get(value, value) if isinstance(value, str) else value

    meta = {"labels": {"lifecycle": kind.label}}
    names = kind.case.get("names") or [f"{kind.label}-{count}" for count in range(number)]
    return [
        copy.deepcopy({"metadata": {"name": name, **meta}, **filled(kind.case["object"])}) for name in names[:number]
    ]


@cache
def certificate_request() -> str:
    """A signed certificate request in base64."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "anna")])
    key = ec.generate_private_key(ec.SECP256R1())
    signed = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return base64.b64encode(signed.public_bytes(serialization.Encoding.PEM)).decode()


def contains(whole: Any, part: Any) -> bool:
    """Whether an object has the fields of another one, and a list an item for each item of the other one."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(contains(whole.get(key), value) for key, value in part.items())
    if isinstance(part, list):
        return all(any(contains(item, entry) for item in whole or ()) for entry in part)
    return bool(whole == part)


@pytest.mark.parametrize("kind", CASES, indirect=True)
def test_operations(kind: Kind, place: str) -> None:
    before = kind.api.do("GET", kind.path)["metadata"]["resourceVersion"]
    created = [kind.api.do("POST", kind.path, obj) for obj in objects(kind, place)]
    names = [item["metadata"]["name"] for item in created]
    assert all(map(contains, created, objects(kind, place)))
    assert kind.api.ask("POST", kind.path, objects(kind, place)[0]).status == 409

    assert kind.api.do("GET", kind.path_of(names[0]))["metadata"]["uid"] == created[0]["metadata"]["uid"]
    assert [item["metadata"]["name"] for item in kind.listed()] == names
    assert [item["metadata"]["name"] for item in kind.listed(kind.everywhere)] == names

    patched = kind.api.do("PATCH", kind.path_of(names[0]), {"metadata": {"annotations": {"patched": "true"}}})
    assert patched["metadata"]["annotations"]["patched"] == "true"
    patched["metadata"]["annotations"]["updated"] = "true"
    updated = changed_by_put(kind, patched)
    assert updated["metadata"]["annotations"].items() >= {"patched": "true", "updated": "true"}.items()

    assert kind.api.do("DELETE", kind.path_of(names[0]), gracePeriodSeconds="0")
    eventually(lambda: kind.api.ask("GET", kind.path_of(names[0])).status == 404)
    assert [item["metadata"]["name"] for item in kind.listed()] == names[1:]
    kind.api.do("DELETE", kind.path, labelSelector=f"lifecycle={kind.label}", gracePeriodSeconds="0")
    eventually(lambda: kind.listed() == [])
    follow(kind, before, names)


def changed_by_put(kind: Kind, obj: Object) -> Object:
    """The answer to a PUT, which is repeated with the present version while a controller writes in between."""
    path = kind.path_of(obj["metadata"]["name"])
    for _ in range(20):
        answer = kind.api.ask("PUT", path, obj)
        if answer.status != 409:
            assert answer.status == 200, answer.body
            return dict(answer.body)
        obj["metadata"]["resourceVersion"] = kind.api.do("GET", path)["metadata"]["resourceVersion"]
    raise AssertionError(f"{path} changes again and again")


def follow(kind: Kind, version: str, names: list[str]) -> None:
    """Reads the watch from a version: it has every change in order, and ends with the last deletion."""
    selected = kind.api.watch(kind.path, resourceVersion=version, labelSelector=f"lifecycle={kind.label}")
    observed: list[tuple[str, str]] = []
    annotations: list[Object] = []
    while sum(subject == "DELETED" for subject, _ in observed) < len(names):
        event = next(selected)
        meta = event["object"]["metadata"]
        observed.append((event["type"], meta["name"]))
        annotations.append(meta.get("annotations") or {})
    selected.close()
    for name in names:
        own = [subject for subject, of in observed if of == name]
        assert (own[0], own[-1]) == ("ADDED", "DELETED"), observed
    changes = [
        item
        for (subject, of), item in zip(observed, annotations, strict=True)
        if (subject, of) == ("MODIFIED", names[0])
    ]
    steps = [set(change) & {"patched", "updated"} for change in changes]
    assert [step for step, _ in itertools.groupby(steps) if step] == [{"patched"}, {"patched", "updated"}]


@pytest.mark.parametrize("kind", [name for name, case in CASES.items() if "status" in case], indirect=True)
def test_status(kind: Kind, place: str) -> None:
    (expected,) = objects(kind, place, 1)
    name = kind.api.do("POST", kind.path, expected)["metadata"]["name"]
    path = f"{kind.path_of(name)}/status"
    status = kind.case["status"]
    note = {"metadata": {"annotations": {"patchedstatus": "true"}}}
    patched = kind.api.do("PATCH", path, {**note, "status": status})
    assert contains(patched["status"], status), patched["status"]
    keeps = kind.case.get("statusKeepsMetadata", False)
    assert ("patchedstatus" in (patched["metadata"].get("annotations") or {})) == keeps

    read = kind.api.do("GET", path)
    assert read["kind"] == patched["kind"]
    for _ in range(20):
        read["status"] = {**read["status"], **changed(status)}
        answer = kind.api.ask("PUT", path, read)
        if answer.status != 409:
            break
        read = kind.api.do("GET", path)
    assert answer.status == 200, answer.body
    assert contains(answer.body["status"], changed(status)), answer.body["status"]
    now = kind.api.do("GET", kind.path_of(name))
    assert contains(now["spec"], expected["spec"])
    if not kind.case.get("controlled"):
        assert contains(now["status"], changed(status))


def changed(status: Any) -> Any:
    """The status with other texts: messages, and the address of a load balancer."""
    if isinstance(status, dict):
        return {key: "another" if key == "message" else changed(value) for key, value in status.items()}
    if isinstance(status, list):
        return [changed(item) for item in status]
    return (
        {"169.1.1.1": "169.1.1.2", "203.0.113.1": "203.0.113.2"}.get(status, status)
        if isinstance(status, str)
        else status
    )
