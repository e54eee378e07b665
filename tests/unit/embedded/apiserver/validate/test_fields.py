"""Decoding by the schema: types, unknown and duplicate fields."""

from typing import Any

import pytest

from podwire.embedded.apiserver.kinds import BY_KIND
from podwire.embedded.apiserver.schema import data
from podwire.embedded.apiserver.validate import fields
from podwire.errors import ApiError

DEPLOYMENT = BY_KIND["apps", "v1", "Deployment"]
SECRET = BY_KIND["", "v1", "Secret"]


def decode(obj: dict[str, Any], kind: Any = DEPLOYMENT) -> fields.Decoded:
    schema = data.for_kind(kind.group, kind.version, kind.kind)
    assert schema is not None
    return fields.decode(obj, schema, kind)


def with_container(**container: Any) -> dict[str, Any]:
    return {"spec": {"template": {"spec": {"containers": [{"name": "c", **container}]}}}}


MISTYPED = [
    ({"spec": {"replicas": "3"}},
     "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32"),
    ({"spec": {"replicas": 1.5}},
     "json: cannot unmarshal number 1.5 into Go struct field DeploymentSpec.spec.replicas of type int32"),
    ({"spec": {"paused": "yes"}},
     "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.paused of type bool"),
    (with_container(env=[{"name": "X", "value": 1}]),
     "json: cannot unmarshal number into Go struct field EnvVar.spec.template.spec.containers.env.value "
     "of type string"),
    ({"spec": {"template": {"spec": {"containers": {}}}}},
     "json: cannot unmarshal object into Go struct field PodSpec.spec.template.spec.containers of type "
     "[]v1.Container"),
    ({"metadata": {"labels": ["a"]}},
     "json: cannot unmarshal array into Go struct field ObjectMeta.metadata.labels of type map[string]string"),
    ({"metadata": {"labels": {"a": 1}}},
     "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels.a of type string"),
    ({"spec": []}, "json: cannot unmarshal array into Go struct field Deployment.spec of type v1.DeploymentSpec"),
    (with_container(resources={"limits": {"cpu": "lots"}}),
     "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"),
]  # fmt: skip


@pytest.mark.parametrize(("obj", "problem"), MISTYPED)
def test_wrong_types(obj: dict[str, Any], problem: str) -> None:
    with pytest.raises(ApiError) as caught:
        decode(obj)
    assert caught.value.code == 400
    assert caught.value.message == (f'Deployment in version "v1" cannot be handled as a Deployment: {problem}')


def test_secret_data_is_base64() -> None:
    with pytest.raises(ApiError, match="illegal base64 data"):
        decode({"data": {"a": "no!"}}, SECRET)


def test_unknown_fields_are_named_and_dropped() -> None:
    obj = {**with_container(imag="x", ports=[{"containerPort": 80, "foo": 1}]), "sepc": {}}
    result = decode(obj)
    assert result.unknown == [
        "spec.template.spec.containers[0].imag",
        "spec.template.spec.containers[0].ports[0].foo",
        "sepc",
    ]
    assert result.obj == with_container(ports=[{"containerPort": 80}])
    assert fields.problems(["spec.foo"], ["spec.bar"]) == [
        'unknown field "spec.foo"', 'duplicate field "spec.bar"'
    ]  # fmt: skip
    assert fields.strict_refusal(DEPLOYMENT, ['unknown field "x"']).message.endswith(
        'as a Deployment: strict decoding error: unknown field "x"'
    )


def test_nulls_and_empty_lists_are_dropped() -> None:
    obj = {"metadata": {"creationTimestamp": None, "labels": {}}, "spec": {"strategy": {}, "replicas": 0}}
    assert decode(obj).obj == {"metadata": {}, "spec": {"strategy": {}, "replicas": 0}}


def test_quantities_become_canonical() -> None:
    result = decode(with_container(resources={"limits": {"cpu": 0.5, "memory": "1024Mi"}})).obj
    limits = result["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"cpu": "500m", "memory": "1Gi"}


def test_duplicates() -> None:
    raw = b'{"spec":{"a":1,"a":2,"list":[{"b":1},{"c":1,"c":2,"c":3}]},"spec2":{}}'
    assert fields.duplicates(raw) == ["spec.a", "spec.list[1].c"]
    assert fields.duplicates(b"not json") == []
