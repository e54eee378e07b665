"""Ingresses as the API sends them."""

import msgspec

from podwire.model.ingress import Ingress, IngressClass, ServiceBackendPort, key_of_port

_INGRESS = b"""
{"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "web", "namespace": "shop"},
 "spec": {"ingressClassName": "podwire", "tls": [{"hosts": ["a"], "secretName": "s"}],
          "rules": [{"host": "a", "http": {"paths": [{"path": "/", "pathType": "Exact",
                    "backend": {"service": {"name": "web", "port": {"name": "http"}}}}]}}]},
 "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1", "ports": [{"port": 80, "protocol": "TCP"}]}]}}}
"""


def test_an_ingress_keeps_its_fields() -> None:
    ingress = msgspec.json.decode(_INGRESS, type=Ingress)
    (rule,) = ingress.spec.rules
    assert rule.http is not None
    (path,) = rule.http.paths
    assert (rule.host, path.path, path.path_type) == ("a", "/", "Exact")
    assert path.backend.service is not None
    assert (path.backend.service.name, path.backend.service.port.name) == ("web", "http")
    assert ingress.spec.tls[0].secret_name == "s"
    assert ingress.status.load_balancer.ingress[0].ip == "192.0.2.1"


def test_a_class_is_the_default_by_its_annotation() -> None:
    text = '{"metadata": {"name": "c", "annotations": {"ingressclass.kubernetes.io/is-default-class": "%s"}}}'
    assert msgspec.json.decode(text % "true", type=IngressClass).is_default
    assert not msgspec.json.decode(text % "false", type=IngressClass).is_default


def test_a_port_has_a_name_or_a_number() -> None:
    assert key_of_port(ServiceBackendPort(name="http")) == "http"
    assert key_of_port(ServiceBackendPort(number=80)) == "80"
