import pytest
import yaml

from podwire.errors import ConfigErrors
from podwire.local.conformance import casefile, strict

_FILE = """
format: netpol-cases/1
initial:
  namespaces: {x: {}}
  pods: [{namespace: x, name: a, ip: 10.244.0.11}, {namespace: x, name: b, ip: 10.244.0.12}]
cases:
  - id: one
    steps:
      - actions:
          - op: create_policy
            policy:
              apiVersion: networking.k8s.io/v1
              kind: NetworkPolicy
              metadata: {name: p, namespace: x}
              spec: {podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}
        from: x/a
        to: x/b
        port: 80
        allowed: true
"""


def test_fields_that_there_are_not() -> None:
    strict.check(casefile.parse(_FILE.encode(), "f.yaml"))
    wrong = _FILE.replace("podSelector: {}, ingress", "podSelectr: {}, ingress").replace("from: [{", "form: [{")
    assert yaml.load(wrong, Loader=yaml.CSafeLoader) != yaml.load(_FILE, Loader=yaml.CSafeLoader)
    with pytest.raises(ConfigErrors) as caught:
        strict.check(casefile.parse(wrong.encode(), "f.yaml"))
    assert str(caught.value).splitlines() == [
        "f.yaml: case one: steps[0].actions[0].policy.spec.podSelectr: there is no such field",
        "f.yaml: case one: steps[0].actions[0].policy.spec.ingress[0].form: there is no such field",
    ]
