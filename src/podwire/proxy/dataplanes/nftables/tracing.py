"""The tables of the ``nftables`` data plane for :mod:`podwire.proxy.tracing`: as planned, and as the kernel holds them.

Reading a table with the elements of 10,000 Services takes 0.13 s, so it is read whole.
"""

from podwire.kernel.netns import NetnsPath
from podwire.kernel.nft import Nft
from podwire.kernel.nft_families import FAMILIES
from podwire.proxy.dataplanes.nftables.contents import Contents
from podwire.proxy.dataplanes.nftables.layout import TABLE, NftablesLayout
from podwire.proxy.servicemap import NodeFacts, ServiceMap, ports_of_family
from podwire.trace.nft import Tracer
from podwire.trace.packet import Machine


def planned(services: ServiceMap, facts: NodeFacts, machine: Machine) -> Tracer:
    """The state that would be programmed."""
    tables = []
    for family in FAMILIES:
        contents = Contents(NftablesLayout(family, facts))
        contents.change(ports_of_family(services, family))
        tables.append(contents.table())
    return Tracer(tables, machine)


def held(netns: NetnsPath, machine: Machine) -> Tracer:
    """The state that the kernel holds.

    Raises: KernelError.
    """
    with Nft(netns) as nft:
        tables = (nft.read(family, TABLE) for family in FAMILIES)
        return Tracer([table for table in tables if table is not None], machine)
