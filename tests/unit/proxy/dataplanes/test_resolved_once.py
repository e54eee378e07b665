"""Only the owner of the resolved Services keeps them: what a data plane compiles holds no second collection."""

import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from podwire.proxy.dataplanes.iptables.contents import Contents as IptablesContents
from podwire.proxy.dataplanes.iptables.layout import IptablesLayout
from podwire.proxy.dataplanes.ipvs.contents import Contents as IpvsContents
from podwire.proxy.dataplanes.ipvs.layout import IpvsLayout
from podwire.proxy.dataplanes.nftables.contents import Contents as NftablesContents
from podwire.proxy.dataplanes.nftables.layout import NftablesLayout
from podwire.proxy.dataplanes.userspace.contents import Contents as UserspaceContents
from podwire.proxy.dataplanes.userspace.layout import UserspaceLayout
from podwire.proxy.registry import DATAPLANES
from podwire.proxy.servicemap import NodeFacts, ResolvedEndpoint, ResolvedPort, ServiceMap, ports_of_family

FACTS = NodeFacts(name="n1", addresses=("192.168.99.1",), pod_cidrs=("10.0.0.0/8",))
CONTENTS: dict[str, Callable[[], Any]] = {
    "iptables": lambda: IptablesContents(IptablesLayout("ip", FACTS)),
    "ipvs": lambda: IpvsContents(IpvsLayout("ip", FACTS, FACTS.addresses)),
    "nftables": lambda: NftablesContents(NftablesLayout("ip", FACTS)),
    "userspace": lambda: UserspaceContents(UserspaceLayout("ip", FACTS), {}),
}


def resolved() -> dict[str, tuple[ResolvedPort, ...]]:
    port = ResolvedPort(
        service="default/web",
        port_name="http",
        protocol="tcp",
        family="ip",
        port=80,
        cluster_ip="10.96.0.10",
        external_ips=("203.0.113.7",),
        cluster_endpoints=(ResolvedEndpoint("10.0.0.1", 8080),),
        has_endpoints=True,
    )
    return {"default/web": (port,)}


def holders(services: ServiceMap) -> int:
    """How many references the tuple of the Service's ports has."""
    return sys.getrefcount(services["default/web"])


def test_contents_of_every_data_plane_are_checked() -> None:
    assert CONTENTS.keys() == DATAPLANES.keys()


@pytest.mark.parametrize("name", CONTENTS)
def test_contents_keep_no_collection_of_resolved_services(name: str) -> None:
    contents, services = CONTENTS[name](), resolved()
    before = holders(services)
    contents.change(ports_of_family(services, "ip"))
    assert holders(services) == before
    contents.change({"default/web": ()})
    contents.change(ports_of_family(services, "ip"))
    assert holders(services) == before


@pytest.mark.parametrize("name", [name for name in CONTENTS if name != "nftables"])
def test_ports_are_kept_only_while_they_wait(name: str) -> None:
    contents, services = CONTENTS[name](), resolved()
    (port,) = services["default/web"]
    other = msgspec.structs.replace(port, service="default/other", cluster_ip="10.96.0.11")
    contents.change({"default/other": (other,)})
    before = holders(services)
    contents.change(ports_of_family(services, "ip"))
    assert holders(services) == before + 1, "default/other holds the external address"
    contents.change({"default/other": ()})
    assert holders(services) == before


def test_nftables_places_the_resolved_ports_themselves() -> None:
    contents, services = CONTENTS["nftables"](), resolved()
    (port,) = services["default/web"]
    before = sys.getrefcount(port)
    contents.change(ports_of_family(services, "ip"))
    assert sys.getrefcount(port) == before + 1, "the placing of the port, without a copy"
