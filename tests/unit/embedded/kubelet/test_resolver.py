"""resolv.conf and hosts of pods."""

import msgspec
import pytest

from podwire.embedded.kubelet.resolver import Resolver, parse_resolver, pod_hostname, pod_hosts, pod_resolver
from podwire.model.pod import Pod

NODE = parse_resolver("# comment\nnameserver 192.0.2.1\nsearch corp.example lan.\noptions timeout:2\n")
CLUSTER = "nameserver 10.96.0.10\n"


def pod(**spec: object) -> Pod:
    return msgspec.convert({"metadata": {"name": "web-0", "namespace": "shop"}, "spec": spec}, Pod)


def text(*lines: str) -> str:
    return "\n".join(lines) + "\n"


SEARCH = "search shop.svc.cluster.local svc.cluster.local cluster.local corp.example lan"
AS_NODE = text("search corp.example lan", "nameserver 192.0.2.1", "options timeout:2")
IN_CLUSTER = text(SEARCH, "nameserver 10.96.0.10", "options ndots:5")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, IN_CLUSTER),
        ({"dnsPolicy": "ClusterFirst", "hostNetwork": True}, AS_NODE),
        ({"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": True}, IN_CLUSTER),
        ({"dnsPolicy": "Default"}, AS_NODE),
        ({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.1.1.1"], "searches": ["."]}},
         text("search .", "nameserver 1.1.1.1")),
        ({"dnsConfig": {"nameservers": ["1.1.1.1"], "searches": ["x"], "options": [
            {"name": "ndots", "value": "2"}, {"name": "edns0"}]}},
         text(f"{SEARCH} x", "nameserver 10.96.0.10", "nameserver 1.1.1.1", "options ndots:2 edns0")),
    ],
    ids=str,
)  # fmt: skip
def test_dns_policies(spec: dict[str, object], expected: str) -> None:
    assert str(pod_resolver(pod(**spec), NODE, ("10.96.0.10",), "cluster.local")) == expected


def test_limits() -> None:
    config = {"nameservers": [f"1.1.1.{n}" for n in range(9)], "searches": [f"{'x' * 60}{n}" for n in range(60)]}
    resolver = pod_resolver(pod(dnsConfig=config), NODE, ("10.96.0.10",), "cluster.local")
    assert len(resolver.servers) == 3
    assert len(resolver.searches) <= 32
    assert len(" ".join(resolver.searches)) <= 2048


def test_without_cluster_dns_the_nodes_settings_apply() -> None:
    assert pod_resolver(pod(), NODE, (), "cluster.local") == NODE


def test_round_trip() -> None:
    value = Resolver(("1.1.1.1", "::1"), ("a", "b"), ("ndots:5",))
    assert parse_resolver(str(value)) == value


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, "web-0"),
        ({"hostname": "db"}, "db"),
        ({"hostNetwork": True}, "node-1"),
        ({"hostname": "x" * 70}, "x" * 63),
    ],
)
def test_hostname(spec: dict[str, object], expected: str) -> None:
    assert pod_hostname(pod(**spec), "node-1") == expected


def test_hosts_name_the_pod_and_its_aliases() -> None:
    subject = pod(subdomain="db", hostAliases=[{"ip": "1.2.3.4", "hostnames": ["a", "b"]}])
    lines = pod_hosts(subject, ("10.244.0.5",), "web-0", "cluster.local", "").splitlines()
    assert "10.244.0.5\tweb-0.db.shop.svc.cluster.local\tweb-0" in lines
    assert lines[-1] == "1.2.3.4\ta\tb"
    assert "127.0.0.1\tlocalhost" in lines
    assert lines[0] == "# Kubernetes-managed hosts file."


def test_host_network_pod_has_the_nodes_hosts() -> None:
    text = pod_hosts(pod(hostNetwork=True), (), "node-1", "cluster.local", "9.9.9.9 here\n")
    assert text.splitlines() == ["# Kubernetes-managed hosts file (host network).", "9.9.9.9 here"]
