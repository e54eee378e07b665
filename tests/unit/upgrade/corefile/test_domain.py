"""The domain of a cluster by its Corefile."""

import pytest

from podwire.upgrade.corefile.domain import domain_of


@pytest.mark.parametrize(
    ("corefile", "domain"),
    [
        (".:53 {\n  errors\n  kubernetes shop.internal in-addr.arpa ip6.arpa {\n    ttl 5\n  }\n}\n", "shop.internal"),
        (".:53 {\n  kubernetes in-addr.arpa shop.internal. {\n  }\n}\n", "shop.internal"),
        ("example.org {\n  file x\n}\n.:53 {\n  kubernetes a.b\n}\n", "a.b"),
        (".:53 {\n  forward . 192.0.2.1\n}\n", "cluster.local"),
        (".:53 {\n", "cluster.local"),
        ("", "cluster.local"),
    ],
)
def test_the_domain_is_the_first_zone_of_kubernetes(corefile: str, domain: str) -> None:
    assert domain_of(corefile) == domain
