"""The configuration document of the DNS server."""

import pytest

from podwire.dns.config import DnsConfig, parse_config
from podwire.errors import ConfigError


def test_an_empty_document_means_the_defaults() -> None:
    assert parse_config("", "f") == DnsConfig()


def test_settings_are_read() -> None:
    config = parse_config("domain: corp.test\npods: verified\nupstreams: ['192.0.2.1', '192.0.2.2:5353']\n", "f")
    assert (config.domain, config.pods, len(config.upstreams)) == ("corp.test", "verified", 2)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("pods: some", "pods"),
        ("ttlSeconds: 4000", "ttlSeconds"),
        ("port: x", "port"),
        ("udpSize: 100", "udpSize"),
        ("nodeLocal: true", "listen"),
        ("upstreams: [5]", "upstreams[0]"),
        ("ports: 53", ""),
        ("a: [", ""),
    ],
)
def test_a_wrong_setting_is_named(text: str, path: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(text, "dns.yaml")
    assert (refused.value.source, refused.value.path.lstrip(".")) == ("dns.yaml", path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("listen: [10.96.0.10]", ("10.96.0.10",)),
        ("listen: [10.96.0.10]\nnodeLocal: true", ("0.0.0.0", "::")),
        ("listen: [fd96::a]\nnodeLocal: true", ("0.0.0.0", "::")),
        ("listen: [10.96.0.10]\nnodeLocal: true\nhttpAddress: 127.0.0.1", ("127.0.0.1",)),
    ],
)
def test_pages_of_a_node_server_have_both_families(text: str, expected: tuple[str, ...]) -> None:
    """A kubelet asks at the node's address, whose family may differ from that of the DNS Service."""
    assert parse_config(text, "f").page_addresses == expected
