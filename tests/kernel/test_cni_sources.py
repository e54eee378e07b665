"""Pods with devices of their own send from their own addresses alone, in both families and without the part policy."""

import json
from collections.abc import Callable

import pytest
from tests.kernel.agent_cluster import eventually
from tests.kernel.cni_node import VERSION, NodeAgent, inside
from tests.kernel.test_cni_bridge import BOTH, Datagrams

from podwire.cni import protocol
from podwire.cni.sourceguard import FAMILY, TABLE
from podwire.errors import CniError

FOREIGN = ("10.99.0.1", "fd99::1")
"""Addresses of no pod."""


def guarded(node: NodeAgent) -> str:
    """The source guard as nft(8) shows it; empty when there is none."""
    return inside(node.place, "nft", "list", "table", FAMILY, TABLE).stdout


def test_spoofed_sources_of_both_families_are_dropped(make: Callable[..., NodeAgent]) -> None:
    node = make(*BOTH)
    web, target, sender = node.add("web"), node.add("target"), node.add("sender")
    for address in (*web, *FOREIGN):
        inside(node.pods / "sender", "ip", "address", "add", address, "dev", "eth0", *(["nodad"] * (":" in address)))
    wire = Datagrams(node.pods / "target", node.pods / "sender")
    for by_agent in (True, False):
        if not by_agent:
            node.stop()  # The guard does not need the agent.
        for stolen, foreign, own, listener in zip(web, FOREIGN, sender, target, strict=True):
            wire.send(stolen, listener)
            wire.send(foreign, listener)
            wire.send(own, listener)
            assert wire.heard_until(own) == [own], by_agent
    inside(node.place, "nft", "delete", "table", FAMILY, TABLE)
    wire.send(web[1], target[1])
    assert wire.heard_until(web[1]) == [web[1]], "without the guard nothing else stops IPv6"
    wire.close()
    node.start()
    assert web[1] in guarded(node), "a new agent restores the guard"


def test_a_spoofed_source_does_not_reach_the_node(make: Callable[..., NodeAgent]) -> None:
    node = make(*BOTH)
    node.add("web")
    sender = node.add("sender")
    inside(node.place, "ip", "address", "add", "fd77::1/128", "dev", "lo")
    inside(node.pods / "sender", "ip", "address", "add", FOREIGN[1], "dev", "eth0", "nodad")
    wire = Datagrams(node.place, node.pods / "sender")
    wire.send(FOREIGN[1], "fd77::1")
    wire.send(sender[1], "fd77::1")
    assert wire.heard_until(sender[1]) == [sender[1]]
    wire.close()


def test_guard_comes_back_and_goes_with_the_last_pod(make: Callable[..., NodeAgent]) -> None:
    node = make(*BOTH)
    assert not guarded(node)
    web, other = node.add("web"), node.add("other")
    assert node.call("CHECK", "web") == (0, {})
    inside(node.place, "nft", "flush", "set", FAMILY, TABLE, "own")
    eventually(lambda: web[1] in guarded(node) and other[1] in guarded(node))
    inside(node.place, "nft", "delete", "table", FAMILY, TABLE)
    eventually(lambda: web[1] in guarded(node))
    assert node.call("DEL", "web") == (0, {})
    assert web[1] not in guarded(node) and other[1] in guarded(node)
    assert node.call("DEL", "other") == (0, {})
    assert not guarded(node)


def test_check_names_the_guard_that_is_gone(make: Callable[..., NodeAgent]) -> None:
    node = make(*BOTH)
    node.add("web")
    environment = {
        "CNI_COMMAND": "CHECK",
        "CNI_CONTAINERID": "c-web",
        "CNI_NETNS": str(node.pods / "web"),
        "CNI_IFNAME": "eth0",
    }
    conf = {"cniVersion": VERSION, "name": "podwire", "prevResult": node.results["web", "eth0"]}
    request = protocol.parse(environment, json.dumps(conf).encode())

    def check_without_guard() -> str:
        """Both in one step of the loop, so that no healing is between them."""
        inside(node.place, "nft", "delete", "table", FAMILY, TABLE)
        with pytest.raises(CniError) as failure:
            node.service._pods.handle(request, str(node.pods / "web"))
        return failure.value.details

    assert f"{FAMILY} {TABLE}" in node.within(check_without_guard)


def test_pods_with_ipv4_alone_need_no_guard(make: Callable[..., NodeAgent]) -> None:
    node = make(BOTH[0])
    node.add("web")
    assert not guarded(node)
