"""The tables of the ``nftables`` data plane for :mod:`podwire.policy.tracing`: as planned, and as a kernel holds them.

Rules that the kernel holds are shown with their counters.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from podwire.kernel.netns import NetnsPath
from podwire.kernel.nft_families import FAMILIES
from podwire.policy.compile import Compiler
from podwire.policy.contents import follow
from podwire.policy.dataplane import PolicyFacts
from podwire.policy.dataplanes.nftables.contents import Contents
from podwire.policy.dataplanes.nftables.dataplane import layout_of
from podwire.policy.dataplanes.nftables.layout import TABLE
from podwire.state.nft import Table
from podwire.state.value import StateValue
from podwire.trace.nft import Tracer
from podwire.trace.packet import LocalAddresses

OWNER_MARKS: Mapping[str, Any] = {"nftables": tuple((family, TABLE) for family in FAMILIES)}


def planned(compiler: Compiler, devices: Mapping[str, str], facts: PolicyFacts, machine: LocalAddresses) -> Tracer:
    """A tracer over the tables that the data plane would program."""
    tables = []
    for family in FAMILIES:
        contents = Contents(layout_of(facts, family))
        follow(contents, compiler, compiler.everything(), devices)
        tables.append(contents.table())
    return Tracer(tables, machine)


def held(values: Sequence[StateValue], _netns_path: NetnsPath, machine: LocalAddresses) -> Tracer | None:
    """A tracer over the tables that the kernel holds; None when it holds none."""
    tables = [value for value in values if isinstance(value, Table)]
    return Tracer(tables, machine) if tables else None
