"""The conditions of links: what is refused, what the kernel should hold, and what changes do to configured ones."""

import pytest

from podwire.errors import ConfigError
from podwire.local.config import parse_config
from podwire.local.fabric.plan import plan
from podwire.local.lab.conditions import LabConditions, LinkConditions, check_pair, mtus, port_of
from podwire.local.lab.rules import table
from podwire.local.topology import Topology
from podwire.state.nft import Table
from podwire.state.nft_text import parse_table


def topology(segments: int = 1) -> Topology:
    return Topology(name="demo", index=1, segment_count=segments, run="/r", state="/s")


def rules(conditions: LabConditions, nodes: int = 3) -> list[str]:
    result = table(topology(), nodes, conditions)
    return [str(rule) for rule in result.chains[0].rules] if isinstance(result, Table) else []


@pytest.mark.parametrize(
    ("station", "port"), [("host", "host"), ("node-1", "port-1"), ("node-3", "port-3"), ("segment-1", "router-1")]
)
def test_each_station_has_a_port(station: str, port: str) -> None:
    assert port_of(topology(2), 3, station, "lab") == port


@pytest.mark.parametrize("station", ["node-4", "node-0", "node-01", "segment-2", "switch", "", "node-x"])
def test_unknown_stations_are_refused(station: str) -> None:
    with pytest.raises(ConfigError, match="expected one of host, node-1 to node-3, segment-0 to segment-1"):
        port_of(topology(2), 3, station, "lab")


def test_a_cut_link_drops_both_directions() -> None:
    assert rules(LabConditions({"node-2": LinkConditions(cut=True, loss_percent=5)})) == [
        'iifname "port-2" counter packets 0 bytes 0 drop comment "cut node-2"',
        'oifname "port-2" counter packets 0 bytes 0 drop comment "cut node-2"',
    ]


def test_a_pair_is_cut_and_others_are_not() -> None:
    assert rules(LabConditions(pairs=(("node-1", "node-3"),))) == [
        'iifname "port-1" oifname "port-3" counter packets 0 bytes 0 drop comment "cut node-1 from node-3"',
        'iifname "port-3" oifname "port-1" counter packets 0 bytes 0 drop comment "cut node-1 from node-3"',
    ]


@pytest.mark.parametrize(
    ("percent", "condition"),
    [(0.004, "numgen random mod 10000 < 1 "), (5, "numgen random mod 10000 < 500 "), (100, "")],
)
def test_loss_is_a_share_of_the_frames(percent: float, condition: str) -> None:
    (first, _) = rules(LabConditions({"host": LinkConditions(loss_percent=percent)}))
    assert first == f'iifname "host" {condition}counter packets 0 bytes 0 drop comment "loss of host"'


def test_conditions_of_stations_that_are_gone_are_left_out() -> None:
    gone = LabConditions({"node-3": LinkConditions(cut=True)}, (("node-1", "node-3"),))
    assert len(rules(gone, 3)) == 4
    assert rules(gone, 2) == []


def test_the_table_is_text_that_parses_back() -> None:
    conditions = LabConditions({"node-1": LinkConditions(loss_percent=2.5)}, (("node-1", "node-2"),))
    result = table(topology(), 2, conditions)
    assert isinstance(result, Table)
    assert parse_table("\n".join(result.lines())) == result


def test_both_ends_of_a_link_get_its_mtu() -> None:
    conditions = LabConditions({"node-2": LinkConditions(mtu=1400), "segment-1": LinkConditions(mtu=1300)})
    fabric = plan(topology(2), 2, mtus(conditions))
    ports = {link.name: link.mtu for link in fabric.switch.links if link.mtu}
    assert ports == {"port-1": 1500, "port-2": 1400, "router-0": 1500, "router-1": 1300}
    assert "link eth0 mtu 1400" in str(fabric.nodes["node-2"]) and "link eth0 mtu 1500" in str(fabric.nodes["node-1"])
    assert "link eth1 mtu 1300" in str(fabric.router)


def test_changes_stand_above_the_configured_conditions() -> None:
    configured = {"node-1": LinkConditions(mtu=1400), "node-2": LinkConditions(cut=True)}
    changes = LabConditions({"node-2": LinkConditions(), "node-3": LinkConditions(delay_ms=5)})
    assert changes.over(configured).lines() == ("node-1: MTU 1400", "node-3: delay 5 ms")


@pytest.mark.parametrize(
    ("pair", "problem"),
    [
        (("node-1", "node-1"), "expected two nodes"),
        (("host", "node-1"), "only nodes can be cut from each other"),
        (("node-1", "node-2"), "cut segment-1 to separate the segments"),
    ],
)
def test_pairs_that_share_no_segment_are_refused(pair: tuple[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        check_pair(topology(2), pair, "lab")


@pytest.mark.parametrize(
    ("links", "problem"),
    [
        ("{node-2: {lossPercent: 101}}", "links.node-2.lossPercent: 101: expected 0 to 100"),
        ("{node-2: {delayMs: -1}}", "links.node-2.delayMs: -1: expected 0 to 10000"),
        ("{node-2: {mtu: 600}}", "links.node-2.mtu: 600: expected 1280 to 9000"),
        ("{node-7: {cut: true}}", "links.node-7: 'node-7' is not a station; expected one of host, node-1 to node-3"),
        ("{node-2: {jitter: 1}}", "jitter"),
        ("{node-2: 5}", "links"),
    ],
)
def test_wrong_links_in_the_configuration_are_refused(links: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(f"links: {links}", "cluster.yaml")
    assert problem in str(refused.value)
