from ipaddress import IPv4Address

from hypothesis import given
from hypothesis import strategies as st

from podwire.local.topology import CLUSTERS, NODES_PER_SEGMENT, SEGMENTS, Topology


def topology(index: int = 0, segments: int = 1) -> Topology:
    return Topology(name="demo", index=index, segment_count=segments, run="/run/podwire/demo", state="/var/lib/demo")


def test_one_segment_counts_nodes_from_eleven() -> None:
    positions = topology().nodes(3)
    assert [(p.name, str(p.address)) for p in positions] == [
        ("node-1", "10.89.0.11"),
        ("node-2", "10.89.0.12"),
        ("node-3", "10.89.0.13"),
    ]
    assert topology().host_address == IPv4Address("10.89.0.1")


def test_two_segments_take_turns() -> None:
    positions = topology(segments=2).nodes(4)
    assert [str(p.address) for p in positions] == ["10.89.0.11", "10.89.1.11", "10.89.0.12", "10.89.1.12"]


@given(st.sets(st.integers(0, CLUSTERS - 1), min_size=2, max_size=2), st.integers(1, SEGMENTS))
def test_clusters_share_no_address(indexes: set[int], segments: int) -> None:
    item, other = (topology(index, segments) for index in indexes)
    count = 3 * segments
    assert not {p.address for p in item.nodes(count)} & {p.address for p in other.nodes(count)}
    assert not {p.address6 for p in item.nodes(count)} & {p.address6 for p in other.nodes(count)}
    assert item.host_link != other.host_link
    assert len(item.host_link) <= 15


def test_a_full_segment_stays_below_the_router() -> None:
    last = topology().node(NODES_PER_SEGMENT)
    assert last.address < last.segment.router
    assert last.address in last.segment.network


def test_namespaces_are_below_the_run_folder() -> None:
    assert str(topology().netns("node-1")) == "/run/podwire/demo/netns/node-1"
