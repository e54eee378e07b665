"""The words of a question."""

import pytest

from podwire.errors import ConfigError
from podwire.why.syntax import Ref, dns_parts, parse_port, parse_source, parse_target


@pytest.mark.parametrize(
    ("word", "ref"),
    [
        ("shop/web-0", Ref("pod", "shop", "web-0")),
        ("pod/shop/web-0", Ref("pod", "shop", "web-0")),
        ("pod/web-0", Ref("pod", "", "web-0")),
        ("shop/app=web", Ref("pod", "shop", "app=web")),
        ("*/app.kubernetes.io/name=web", Ref("pod", "*", "app.kubernetes.io/name=web")),
        ("node/node-1", Ref("node", name="node-1")),
        ("node-1", Ref("name", name="node-1")),
        ("external", Ref("external")),
        ("192.0.2.7", Ref("address", name="192.0.2.7")),
        ("FD00::1", Ref("address", name="fd00::1")),
    ],
)
def test_sources(word: str, ref: Ref) -> None:
    assert parse_source(word) == Ref(ref.kind, ref.namespace, ref.name, ref.port, word)


@pytest.mark.parametrize(
    ("word", "ref"),
    [
        ("svc/shop/catalog", Ref("service", "shop", "catalog")),
        ("service/catalog:http", Ref("service", "", "catalog", "http")),
        ("svc/shop/catalog:8080", Ref("service", "shop", "catalog", "8080")),
        ("10.96.0.10", Ref("address", name="10.96.0.10")),
        ("10.96.0.10:80", Ref("address", name="10.96.0.10", port="80")),
        ("fd96::10", Ref("address", name="fd96::10")),
        ("[fd96::10]:80", Ref("address", name="fd96::10", port="80")),
        ("node/node-2:30080", Ref("node", name="node-2", port="30080")),
        ("catalog.shop.svc.cluster.local", Ref("name", name="catalog.shop.svc.cluster.local")),
        ("catalog.shop:80", Ref("name", name="catalog.shop", port="80")),
        ("shop/web-0", Ref("pod", "shop", "web-0")),
    ],
)
def test_targets(word: str, ref: Ref) -> None:
    assert parse_target(word) == Ref(ref.kind, ref.namespace, ref.name, ref.port, word)


@pytest.mark.parametrize("word", ["svc/shop/web", "service/web", "a/b/c", "shop/", "", "10.0.0.0/8"])
def test_what_no_connection_comes_from(word: str) -> None:
    with pytest.raises(ConfigError, match="FROM"):
        parse_source(word)


@pytest.mark.parametrize("word", ["svc/", "svc/a/b/c", ":80", "web:", "pod/a/b/c", "", "10.0.0.0/8", "fd00::/8"])
def test_what_no_connection_goes_to(word: str) -> None:
    with pytest.raises(ConfigError, match="TO"):
        parse_target(word)


@pytest.mark.parametrize(
    ("word", "port"),
    [
        ("80", ("80", "")),
        ("53/UDP", ("53", "udp")),
        ("http", ("http", "")),
        ("9/sctp", ("9", "sctp")),
        ("ICMP", ("0", "icmp")),
    ],
)
def test_ports(word: str, port: tuple[str, str]) -> None:
    assert parse_port(word) == port


@pytest.mark.parametrize("word", ["", "0", "65536", "80/HTTP", "/tcp", "80/"])
def test_invalid_port_is_an_error(word: str) -> None:
    with pytest.raises(ConfigError, match="PORT"):
        parse_port(word)


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("catalog", ("own", "catalog")),
        ("catalog.shop", ("shop", "catalog")),
        ("catalog.shop.svc", ("shop", "catalog")),
        ("Catalog.Shop.svc.cluster.local.", ("shop", "catalog")),
        ("www.example.com", None),
        ("catalog.shop.svc.example.com", None),
    ],
)
def test_names_of_services(name: str, result: tuple[str, str] | None) -> None:
    assert dns_parts(name, "own", "cluster.local") == result
