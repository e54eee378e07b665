"""Limits for clients of a Service: annotations, refusals, and the rules of the table."""

from ipaddress import ip_address

import pytest

from podwire.errors import ConfigError
from podwire.loadbalancer.guard import guard_table
from podwire.loadbalancer.protection import Protection, read_protection, read_protections
from podwire.model.meta import ObjectMeta
from podwire.model.service import (
    LoadBalancerIngress,
    LoadBalancerStatus,
    Service,
    ServicePort,
    ServiceSpec,
    ServiceStatus,
)
from podwire.state.nft_text import parse_table


def service(**annotations: str) -> Service:
    own = {f"podwire.io/{name.replace('_', '-')}": text for name, text in annotations.items()}
    meta = {"metallb.io/ip-allocated-from-pool": "p"} | own
    return Service(
        metadata=ObjectMeta(name="web", namespace="shop", annotations=meta),
        spec=ServiceSpec(type="LoadBalancer", ports=(ServicePort(port=80), ServicePort(port=53, protocol="UDP"))),
        status=ServiceStatus(load_balancer=LoadBalancerStatus((LoadBalancerIngress(ip="192.0.2.1"),))),
    )


@pytest.mark.parametrize(
    ("annotations", "want"),
    [
        ({}, {}),
        ({"max_connections_per_source": "9"}, {"connections": 9}),
        ({"new_connections_per_source": "20/second"}, {"rate": 20, "burst": 20}),
        (
            {"new_connections_per_source": "100/minute", "new_connections_burst": "7"},
            {"rate": 100, "unit": "minute", "burst": 7},
        ),
        ({"syn_proxy": "true"}, {"syn_proxy": True}),
        ({"syn_proxy": "false"}, {}),
    ],
)
def test_annotations(annotations: dict[str, str], want: dict[str, object]) -> None:
    default: dict[str, object] = {"key": "shop/web", "addresses": (ip_address("192.0.2.1"),), "tcp_ports": (80,)}
    assert read_protection(service(**annotations)) == Protection(**(default | want))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        ({"max_connections_per_source": "0"}, "per-source]: '0': expected a number from 1 to 1000000"),
        ({"max_connections_per_source": "many"}, "'many': expected a number"),
        ({"new_connections_per_source": "20"}, "'20': expected a number for each second or minute"),
        ({"new_connections_per_source": "0/second"}, "'0/second': expected"),
        ({"new_connections_burst": "-1"}, "new-connections-burst]: '-1'"),
        ({"syn_proxy": "yes"}, "syn-proxy]: 'yes': expected true or false"),
    ],
)
def test_refusals_name_the_annotation(annotations: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_protection(service(**annotations))
    assert message in str(refused.value)
    assert str(refused.value).startswith("Service shop/web: metadata.annotations[podwire.io/")


def test_wrong_annotations_keep_the_last_good_limits() -> None:
    good, problems = read_protections([service(max_connections_per_source="9")], {})
    assert good["shop/web"].connections == 9 and not problems
    again, problems = read_protections([service(max_connections_per_source="x")], good)
    assert again == good and "'x'" in problems["shop/web"]
    assert read_protections([service()], good) == ({}, {})


def test_the_table_has_a_chain_for_each_limit() -> None:
    protection = read_protection(
        service(max_connections_per_source="9", new_connections_per_source="20/second", syn_proxy="true")
    )
    table = guard_table([ip_address("192.0.2.1")], [protection])
    text = str(table)
    assert parse_table(text) == table
    for line in (
        'ip daddr 192.0.2.1 ct state new jump rate-shop/web comment "Service shop/web"',
        "update @rate4-20/second/20-shop/web { ip saddr limit rate over 20/second burst 20 packets } counter",
        "add @count4-9-shop/web { ip saddr ct count over 9 } counter packets 0 bytes 0 drop",
        'iifname != "lo" ip daddr 192.0.2.1 tcp dport 80 tcp flags & fin,syn,rst,ack == syn notrack',
        "ct state invalid,untracked jump syn-shop/web",
        "counter packets 0 bytes 0 synproxy mss 1460 wscale 7 timestamp sack-perm",
    ):
        assert line in text, text
    assert "dport 53" not in text
