"""CEL rules of custom resources, as kubectl shows what breaks them."""

import json
from typing import Any

from tests.e2e.driver import Cluster

Json = dict[str, Any]


def definition(plural: str, *rules: Json) -> str:
    spec = {
        "type": "object",
        "properties": {"least": {"type": "integer"}, "most": {"type": "integer"}, "zone": {"type": "string"}},
        "x-kubernetes-validations": list(rules),
    }
    version = {
        "name": "v1", "served": True, "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}},
    }  # fmt: skip
    created = {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.rules.example.org"},
        "spec": {"group": "rules.example.org", "scope": "Namespaced", "versions": [version],
                 "names": {"plural": plural, "kind": plural.capitalize()}},
    }  # fmt: skip
    return json.dumps(created)


def span(**spec: Any) -> str:
    return json.dumps(
        {"apiVersion": "rules.example.org/v1", "kind": "Spans", "metadata": {"name": "one"}, "spec": spec}
    )


def test_rules_of_a_definition_are_enforced(cluster: Cluster, namespace: str) -> None:
    cluster.apply(
        definition(
            "spans",
            {"rule": "self.least <= self.most", "messageExpression": "'%d > %d'.format([self.least, self.most])"},
            {"rule": "self.zone == oldSelf.zone", "message": "zone is fixed", "fieldPath": ".zone"},
        )
    )
    cluster.kubectl("wait", "crd/spans.rules.example.org", "--for=condition=Established", "--timeout=30s")
    try:
        output = cluster.refused("apply", "-n", namespace, "-f", "-", stdin=span(least=3, most=2, zone="a"))
        assert 'The Spans "one" is invalid: spec: Invalid value: 3 > 2' in output
        cluster.apply(span(least=1, most=2, zone="a"), "-n", namespace)
        output = cluster.refused("apply", "-n", namespace, "-f", "-", stdin=span(least=1, most=2, zone="b"))
        assert "spec.zone: Invalid value: zone is fixed" in output
        cluster.apply(span(least=1, most=3, zone="a"), "-n", namespace)
    finally:
        cluster.kubectl("delete", "crd/spans.rules.example.org")


def test_rule_that_does_not_compile_is_refused(cluster: Cluster) -> None:
    output = cluster.refused("apply", "-f", "-", stdin=definition("bad", {"rule": "self.least <= nobody"}))
    place = "spec.versions[0].schema.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule"
    assert place in output
    assert "compilation failed: ERROR: <input>:1:15: undeclared reference to 'nobody'" in output
