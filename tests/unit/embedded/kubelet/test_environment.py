"""Environment of containers: expansion, references, Service variables."""

from collections.abc import Mapping

import msgspec
import pytest

from podwire.embedded.kubelet.environment import PodFields, compile_environment, expand, quantity, service_variables
from podwire.errors import ConfigError
from podwire.model.pod import Pod
from podwire.model.service import Service

POD = msgspec.convert(
    {
        "metadata": {"name": "web", "namespace": "shop", "uid": "u1", "labels": {"app": "web", "b": 'x"y'}},
        "spec": {
            "nodeName": "node-1",
            "containers": [{"name": "c", "resources": {"limits": {"memory": "64Mi", "cpu": "1500m"}}}],
        },
    },
    Pod,
)
FACTS = PodFields(POD, "node-1", ("10.0.0.5",), ("192.0.2.1",), {"cpu": "8"})


class FakeConfig:
    """ConfigMap ``cm`` and Secret ``s``."""

    def config_map(self, namespace: str, name: str) -> Mapping[str, bytes] | None:
        return {"a": b"1", "not=a-name": b"2"} if name == "cm" else None

    def secret(self, namespace: str, name: str) -> Mapping[str, bytes] | None:
        return {"key": b"hidden"} if name == "s" else None


def compiled(**container: object) -> dict[str, str]:
    spec = {"name": "c", "resources": {"limits": {"memory": "64Mi"}}, **container}
    created = msgspec.convert(spec, type(POD.spec.containers[0]))
    return compile_environment(created, FACTS, {"SVC": "s"}, FakeConfig())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "1"), ("x$(A)$(B)y", "x12y"), ("$$(A)", "$(A)"), ("$(MISSING)", "$(MISSING)"), ("$A", "$A"),
        ("$(A", "$(A"), ("$$", "$"), ("a$$$(A)", "a$1"),
    ],
)  # fmt: skip
def test_expansion(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expected


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ({"fieldRef": {"fieldPath": "metadata.name"}}, "web"),
        ({"fieldRef": {"fieldPath": "metadata.labels['app']"}}, "web"),
        ({"fieldRef": {"fieldPath": "metadata.labels"}}, 'app="web"\nb="x\\"y"'),
        ({"fieldRef": {"fieldPath": "spec.nodeName"}}, "node-1"),
        ({"fieldRef": {"fieldPath": "spec.serviceAccountName"}}, "default"),
        ({"fieldRef": {"fieldPath": "status.podIP"}}, "10.0.0.5"),
        ({"fieldRef": {"fieldPath": "status.hostIP"}}, "192.0.2.1"),
        ({"resourceFieldRef": {"resource": "limits.memory"}}, "67108864"),
        ({"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}, "64"),
        ({"resourceFieldRef": {"resource": "limits.cpu"}}, "2"),
        ({"configMapKeyRef": {"name": "cm", "key": "a"}}, "1"),
        ({"secretKeyRef": {"name": "s", "key": "key"}}, "hidden"),
    ],
    ids=str,
)
def test_references(reference: dict[str, object], expected: str) -> None:
    assert compiled(env=[{"name": "X", "valueFrom": reference}])["X"] == expected


def test_names_that_no_shell_takes_are_variables() -> None:
    variables = compiled(envFrom=[{"configMapRef": {"name": "cm"}, "prefix": "1-"}])
    assert variables["1-a"] == "1"


def test_order_of_sources() -> None:
    variables = compiled(
        envFrom=[{"configMapRef": {"name": "cm"}, "prefix": "P_"}, {"secretRef": {"name": "s"}}],
        env=[{"name": "SVC", "value": "own"}, {"name": "Y", "value": "$(SVC)-$(P_a)-$(LATER)"}, {"name": "LATER"}],
    )
    assert variables == {"SVC": "own", "P_a": "1", "key": "hidden", "Y": "own-1-$(LATER)", "LATER": ""}


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ({"configMapKeyRef": {"name": "no", "key": "a"}}, 'configmap "no" not found'),
        ({"configMapKeyRef": {"name": "cm", "key": "z"}}, "couldn't find key z in configmap shop/cm"),
        ({"secretKeyRef": {"name": "no", "key": "a"}}, 'secret "no" not found'),
        ({"fieldRef": {"fieldPath": "spec.nonsense"}}, "'spec.nonsense' is not supported"),
    ],
    ids=str,
)
def test_missing_objects_and_keys_are_named(reference: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        compiled(env=[{"name": "X", "valueFrom": reference}])


def test_optional_references_may_be_missing() -> None:
    reference = {"configMapKeyRef": {"name": "no", "key": "a", "optional": True}}
    assert "X" not in compiled(env=[{"name": "X", "valueFrom": reference}])
    assert compiled(envFrom=[{"configMapRef": {"name": "no", "optional": True}}]) == {"SVC": "s"}


def service(name: str, namespace: str, ip: str, *ports: dict[str, object]) -> Service:
    meta = {"name": name, "namespace": namespace}
    return msgspec.convert({"metadata": meta, "spec": {"clusterIP": ip, "ports": list(ports)}}, Service)


SERVICES = (
    service("kubernetes", "default", "10.96.0.1", {"name": "https", "port": 443}),
    service("my-db", "shop", "10.96.0.7", {"port": 53, "protocol": "UDP"}),
    service("other", "else", "10.96.0.8", {"port": 80}),
    service("headless", "shop", "None", {"port": 80}),
)


def test_service_variables() -> None:
    variables = service_variables(SERVICES, "shop", links=True)
    assert variables["MY_DB_SERVICE_HOST"] == "10.96.0.7"
    assert variables["MY_DB_PORT"] == "udp://10.96.0.7:53"
    assert variables["MY_DB_PORT_53_UDP_ADDR"] == "10.96.0.7"
    assert variables["KUBERNETES_SERVICE_PORT_HTTPS"] == "443"
    assert not any(key.startswith(("OTHER", "HEADLESS")) for key in variables)


def test_without_links_only_the_api_has_variables() -> None:
    assert {key.split("_")[0] for key in service_variables(SERVICES, "shop", links=False)} == {"KUBERNETES"}


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1), ("100m", 0.1), ("1Ki", 1024), ("2G", 2e9), (1.5, 1.5), ("1e3", 1000)]
)
def test_quantity(text: str | float, value: float) -> None:
    assert float(quantity(text)) == value


def test_invalid_quantity_is_an_error() -> None:
    with pytest.raises(ConfigError):
        quantity("ten")
