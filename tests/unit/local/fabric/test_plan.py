from podwire.local.fabric.plan import PINNED_NODES, plan
from podwire.local.topology import Topology
from podwire.state.network import parse


def topology(segments: int = 1) -> Topology:
    return Topology(name="demo", index=1, segment_count=segments, run="/r", state="/s")


def test_node_has_one_link_and_a_default_route() -> None:
    assert str(plan(topology(), 1).nodes["node-1"]).splitlines() == [
        'link eth0 mtu 1500 address 02:89:01:00:00:0b alias "podwire/fabric/demo node-1" up type veth peer port-1 '
        "netns /r/netns/switch",
        "link lo up",
        "address 10.89.8.11/24 dev eth0",
        "address fd89:1::b/64 dev eth0",
        "route ::/0 via fd89:1::1 dev eth0 proto 114",
        "route default via 10.89.8.1 dev eth0 proto 114",
    ]


def test_segments_are_joined_by_the_router() -> None:
    fabric = plan(topology(2), 2)
    assert fabric.router is not None
    assert [a.cidr for a in fabric.router.addresses if ":" not in a.cidr] == ["10.89.8.254/24", "10.89.9.254/24"]
    assert "route 10.89.9.0/24 via 10.89.8.254 dev pw1-host" in str(fabric.host)
    assert "route default via 10.89.9.254 dev eth0 proto 114" in str(fabric.nodes["node-2"])


def test_neighbours_are_pinned_in_large_clusters_only() -> None:
    assert plan(topology(), PINNED_NODES).nodes["node-1"].neighbours == ()
    large = plan(topology(), PINNED_NODES + 1).nodes["node-1"].neighbours
    assert {n.ip for n in large if ":" not in n.ip} == {"10.89.8.1"} | {f"10.89.8.{n}" for n in range(12, 28)}


def test_every_port_has_its_other_end() -> None:
    fabric = plan(topology(2), 5)
    states = [state for state in (fabric.host, fabric.router, *fabric.nodes.values()) if state]
    ends = {link.peer for state in states for link in state.links}
    ports = {link.name for link in fabric.switch.links if not link.kind}
    assert ends - {""} == ports


def test_the_plan_is_text_that_parses_back() -> None:
    state = plan(topology(2), 20).nodes["node-3"]
    assert parse(str(state)) == state
