"""The tables of the ``nftables`` data plane for :mod:`podwire.proxy.tracing`: as planned, and as the kernel holds them.

Reading a table with the elements of 10,000 Services takes 0.13 s, so it is read whole.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from podwire.kernel.netns import NetnsPath
from podwire.kernel.nft_families import FAMILIES
from podwire.proxy.dataplanes.nftables.contents import Contents
from podwire.proxy.dataplanes.nftables.layout import TABLE, NftablesLayout
from podwire.proxy.servicemap import NodeFacts, ServiceMap, ports_of_family
from podwire.state.nft import Table
from podwire.state.value import StateValue
from podwire.trace.nft import Tracer
from podwire.trace.packet import LocalAddresses

OWNER_MARKS: Mapping[str, Any] = {"nftables": tuple((family, TABLE) for family in FAMILIES)}


def planned(services: ServiceMap, facts: NodeFacts, machine: LocalAddresses) -> Tracer:
    """The state that would be programmed."""
    tables = []
    for family in FAMILIES:
        contents = Contents(NftablesLayout(family, facts))
        contents.change(ports_of_family(services, family))
        tables.append(contents.table())
    return Tracer(tables, machine)


def held(values: Sequence[StateValue], _netns_path: NetnsPath, machine: LocalAddresses) -> Tracer:
    """The state that the kernel holds."""
    return Tracer([value for value in values if isinstance(value, Table)], machine)
