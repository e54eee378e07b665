"""The bridge of podwire's pods is told from other devices."""

from msgspec.structs import replace

from podwire.cluster.podbridge import ALIAS, BRIDGE, is_pod_bridge
from podwire.state.link import Link


def test_only_the_marked_bridge_is_that_of_pods() -> None:
    own = Link(BRIDGE, "bridge", alias=ALIAS)
    assert is_pod_bridge(own)
    for other in (replace(own, alias=""), replace(own, name="br0"), Link(BRIDGE, "dummy", alias=ALIAS)):
        assert not is_pod_bridge(other)
