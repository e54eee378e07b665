"""Which flows are stale."""

import pytest

from podwire.kernel.conntrack import Ends, Flow, Target
from podwire.proxy.flows import UDP_AND_TCP, StaleFlows, flow_cleaner, stale_flows, untranslated, without_relayed
from podwire.proxy.servicemap import ResolvedPort

NODE = ("192.168.99.1",)


def port(*serving: str, number: int = 53, protocol: str = "udp") -> ResolvedPort:
    return ResolvedPort(
        service="default/dns",
        port_name="",
        protocol=protocol,
        family="ip",
        port=number,
        cluster_ip="10.96.0.10",
        node_port=30053,
        external_ips=("203.0.113.7",),
        serving=frozenset(serving),
    )


def flow(destination: str, number: int, answers: str, answer_port: int = 5353, protocol: str = "UDP") -> Flow:
    return Flow(protocol, Ends("10.0.0.1", destination, 40000, number), Ends(answers, "10.0.0.1", answer_port, 40000))


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (flow("10.96.0.10", 53, "10.0.0.2"), False),
        (flow("10.96.0.10", 53, "10.0.0.3"), True),
        (flow("10.96.0.10", 53, "10.0.0.2", 1), True),
        (flow("10.96.0.10", 53, "10.96.0.10", 53), True),
        (flow("10.96.0.10", 54, "10.0.0.3"), False),
        (flow("203.0.113.7", 53, "10.0.0.3"), True),
        (flow("192.168.99.1", 30053, "10.0.0.3"), True),
        (flow("192.168.99.1", 30053, "10.0.0.2"), False),
        (flow("198.51.100.1", 30053, "198.51.100.1", 30053), False),
        (flow("10.96.0.10", 53, "10.0.0.3", protocol="TCP"), False),
    ],
)
def test_flows_that_do_not_end_at_a_serving_endpoint(entry: Flow, expected: bool) -> None:
    result = stale_flows((port("10.0.0.2:5353", "10.0.0.3:5353"),), (port("10.0.0.2:5353"),))
    stale = StaleFlows(result.frontends, frozenset(NODE))
    assert stale(entry) is expected


def test_without_endpoints_every_flow_is_stale() -> None:
    assert stale_flows((port("10.0.0.2:5353"),), (port(),))(flow("10.96.0.10", 53, "10.0.0.2"))


def test_flows_of_a_service_that_is_gone_are_stale() -> None:
    assert stale_flows((port("10.0.0.2:5353"),), ())(flow("10.96.0.10", 53, "10.0.0.2"))


def test_tcp_flows_are_checked_on_request_when_an_endpoint_left() -> None:
    two, item = port("10.0.0.2:80", "10.0.0.3:80", protocol="tcp"), port("10.0.0.2:80", protocol="tcp")
    gone = flow("10.96.0.10", 53, "10.0.0.3", 80, "TCP")
    assert not stale_flows((two,), (item,)).frontends
    stale = stale_flows((two,), (item,), UDP_AND_TCP)
    assert stale(gone)
    assert not stale(flow("10.96.0.10", 53, "10.0.0.2", 80, "TCP"))
    assert not stale(flow("10.96.0.10", 53, "10.0.0.3", 80))
    assert stale.protocols == {"TCP"}
    assert not stale_flows((), (item,), UDP_AND_TCP).frontends
    assert not stale_flows((item,), (two,), UDP_AND_TCP).frontends


def test_a_change_that_leaves_nothing_stale_does_not_list() -> None:
    clean = flow_cleaner(lambda: NODE)
    assert clean((port("10.0.0.2:53"),), (port("10.0.0.2:53", "10.0.0.3:53"),)) is None
    assert clean((port("10.0.0.2:53"),), (port("10.0.0.3:53"),)) is not None


def test_few_frontends_are_dumped_one_by_one_many_at_once() -> None:
    few = stale_flows((port("10.0.0.2:5353"),), ())
    assert few.listings() == (
        ("UDP", Target("", 30053)),
        ("UDP", Target("10.96.0.10", 53)),
        ("UDP", Target("203.0.113.7", 53)),
    )
    many = stale_flows(tuple(port("10.0.0.2:5353", number=number) for number in range(53, 63)), ())
    assert many.listings() == (("UDP", None),)


def test_relay_flows_are_stale_without_endpoints() -> None:
    none, item, two = port(), port("10.0.0.2:5353"), port("10.0.0.2:5353", "10.0.0.3:5353")
    assert without_relayed((two,), (item,)) == ((), ())
    assert without_relayed((item,), (none,)) == ((item,), (none,))
    assert without_relayed((item,), ()) == ((item,), ())
    assert without_relayed((none,), (item,)) == ((none,), (item,))
    other = port("10.0.0.3:80", number=80, protocol="tcp")
    assert without_relayed((two, other), (item,)) == ((other,), ())
    assert flow_cleaner(lambda: NODE, mode="nftables")((two,), (item,)) is not None
    assert flow_cleaner(lambda: NODE, mode="userspace")((two,), (item,)) is None
    assert flow_cleaner(lambda: NODE, mode="userspace")((item,), (none,)) is not None
    assert flow_cleaner(lambda: NODE, mode="userspace")((), (item,), gap=True) is not None


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (flow("10.96.0.10", 53, "10.96.0.10", 53), True),
        (flow("10.96.0.10", 53, "10.0.0.2"), False),
        (flow("10.96.0.10", 53, "192.168.99.1", 40000), False),  # a relay answers
        (flow("10.96.0.10", 54, "10.96.0.10", 54), False),
        (flow("10.96.0.10", 53, "10.96.0.10", 53, protocol="TCP"), False),
        (flow("203.0.113.7", 53, "203.0.113.7", 53), True),
        (flow("192.168.99.1", 30053, "192.168.99.1", 30053), True),
        (flow("192.168.99.1", 30053, "192.168.99.1", 40000), False),  # a relay on the node answers
        (flow("192.168.99.1", 53, "192.168.99.1", 53), False),
        (flow("192.168.99.2", 30053, "192.168.99.2", 30053), False),
    ],
)
def test_flows_that_began_while_rules_were_away_were_not_translated(entry: Flow, expected: bool) -> None:
    assert untranslated((port("10.0.0.2:5353"),), NODE)(entry) is expected
    assert not untranslated((port(),))(entry), "no endpoint serves"
    assert flow_cleaner(lambda: NODE)((), (port(),), gap=True) is None
