"""The parameters of connection tracking, as kube-proxy computes them."""

from typing import Any

import pytest

from podwire.proxy.sysctls import BUCKETS, MAX, ConntrackSettings, plan


@pytest.mark.parametrize(
    ("processors", "settings", "size"),
    [
        (2, {}, 131072),
        (16, {}, 524288),
        (64, {}, 1048576),
        (4, {"max_per_core": 100, "min": 10}, 400),
        (4, {"max_per_core": 100, "min": 1000}, 1000),
    ],
)
def test_the_size_of_the_table(processors: int, settings: dict[str, Any], size: int) -> None:
    expected = {item.path: item.value for item in plan(ConntrackSettings(**settings), processors)}
    assert (expected[MAX], expected[BUCKETS]) == (str(size), str(size // 4))


def test_defaults_and_what_is_left_alone() -> None:
    assert [str(item) for item in plan(ConntrackSettings(max_per_core=0), 4)] == [
        "sysctl net/netfilter/nf_conntrack_tcp_timeout_established = 86400",
        "sysctl net/netfilter/nf_conntrack_tcp_timeout_close_wait = 3600",
    ]
    everything = ConntrackSettings(
        max_per_core=0, tcp_established_timeout=0, tcp_close_wait_timeout=0, tcp_be_liberal=True, udp_timeout=10,
        udp_stream_timeout=20,
    )  # fmt: skip
    assert [str(item) for item in plan(everything, 4)] == [
        "sysctl net/netfilter/nf_conntrack_tcp_be_liberal = 1",
        "sysctl net/netfilter/nf_conntrack_udp_timeout = 10",
        "sysctl net/netfilter/nf_conntrack_udp_timeout_stream = 20",
    ]
