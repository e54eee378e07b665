"""Matches that both modes of iptables rules use."""

from msgspec.structs import replace

from podwire.proxy.servicemap import NodeFacts
from podwire.proxy.xtables.layout import XtablesLayout

FACTS = NodeFacts(name="n1", pod_cidrs=("10.180.0.0/16", "fd18::/48"), service_cidrs=("172.30.0.0/16",))


def test_pods_are_matched_by_range_or_device() -> None:
    assert XtablesLayout("ip", FACTS).pod_sources() == ("-s 10.180.0.0/16 ",)
    assert XtablesLayout("ip6", FACTS).pod_sources() == ("-s fd18::/48 ",)
    assert XtablesLayout("ip", replace(FACTS, pod_interface="veth*")).pod_sources() == ("-i veth+ ",)
    assert XtablesLayout("ip", NodeFacts(name="n1")).pod_sources() == ()


def test_the_masquerade_mark_is_removed_before_masquerading() -> None:
    rules = XtablesLayout("ip", replace(FACTS, masquerade_bit=14)).masquerade_marked()
    assert rules[:2] == ("-m mark ! --mark 0x4000/0x4000 -j RETURN", "-j MARK --set-xmark 0x4000/0x0")
