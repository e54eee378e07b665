"""resolv.conf and hosts of pods."""

import msgspec
import pytest

from podwire.embedded.kubelet.resolver import (
    Resolver,
    kernel_hostname,
    parse_resolver,
    pod_hostname,
    pod_hosts,
    pod_resolver,
)
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


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"setHostnameAsFQDN": True, "subdomain": "db"}, "web-0.db.shop.svc.cluster.local"),
        ({"setHostnameAsFQDN": True}, "web-0"),
        ({"setHostnameAsFQDN": True, "subdomain": "db" * 20}, "web-0"),
        ({"subdomain": "db"}, "web-0"),
        ({"setHostnameAsFQDN": True, "subdomain": "db", "hostNetwork": True}, "node-1"),
    ],
)
def test_kernel_has_the_whole_name_if_asked_for(spec: dict[str, object], expected: str) -> None:
    assert kernel_hostname(pod(**spec), "node-1", "cluster.local") == expected


def test_hosts_are_the_file_that_the_kubelet_writes() -> None:
    subject = pod(subdomain="db", hostAliases=[{"ip": "1.2.3.4", "hostnames": ["a", "b"]}])
    text = pod_hosts(subject, ("10.244.0.5", "fd00::5"), "web-0", "cluster.local", "")
    assert text == (
        "# Kubernetes-managed hosts file.\n"
        "127.0.0.1\tlocalhost\n"
        "::1\tlocalhost ip6-localhost ip6-loopback\n"
        "fe00::0\tip6-localnet\n"
        "fe00::0\tip6-mcastprefix\n"
        "fe00::1\tip6-allnodes\n"
        "fe00::2\tip6-allrouters\n"
        "10.244.0.5\tweb-0.db.shop.svc.cluster.local\tweb-0\n"
        "fd00::5\tweb-0.db.shop.svc.cluster.local\tweb-0\n"
        "\n"
        "# Entries added by HostAliases.\n"
        "1.2.3.4\ta\tb\n"
    )


def test_host_network_pod_has_the_nodes_hosts() -> None:
    text = pod_hosts(pod(hostNetwork=True), (), "node-1", "cluster.local", "9.9.9.9 here\n")
    assert text.splitlines() == ["# Kubernetes-managed hosts file (host network).", "9.9.9.9 here"]
