"""Routes of Gateway API as they are read from the API."""

import msgspec
import pytest

from podwire.model.backendtls import BackendTlsPolicy
from podwire.model.gatewayapi import Gateway, ListenerSet
from podwire.model.gatewayroutes import ApiRoute, GrpcRoute, TcpRoute, TlsRoute, UdpRoute, hostnames_of


@pytest.mark.parametrize(
    ("kind", "hostnames"), [(GrpcRoute, ("a.example",)), (TlsRoute, ("a.example",)), (TcpRoute, ()), (UdpRoute, ())]
)
def test_routes_of_plain_connections_have_no_host_names(kind: type[ApiRoute], hostnames: tuple[str, ...]) -> None:
    route = msgspec.convert({"metadata": {"name": "a"}, "spec": {"hostnames": ["a.example"]}}, kind)
    assert hostnames_of(route) == hostnames


def test_fields_have_the_names_of_gateway_api() -> None:
    validation = {"wellKnownCACertificates": "System", "hostname": "a.example", "caCertificateRefs": []}
    policy = msgspec.convert({"spec": {"validation": validation}}, BackendTlsPolicy)
    assert policy.spec.validation.well_known_ca_certificates == "System"
    spec = {"allowedListeners": {"namespaces": {"from": "All"}}, "tls": {"frontend": {"perPort": [{"port": 443}]}}}
    gateway = msgspec.convert({"spec": spec}, Gateway)
    assert gateway.spec.allowed_listeners.namespaces.origin == "All"
    assert gateway.spec.tls is not None
    assert gateway.spec.tls.frontend is not None
    assert gateway.spec.tls.frontend.per_port[0].port == 443


def test_a_gateway_takes_no_listener_sets_by_default() -> None:
    assert Gateway().spec.allowed_listeners.namespaces.origin == "None"
    assert ListenerSet().spec.parent_ref.kind == "Gateway"
