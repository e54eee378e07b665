"""The tables of the ``nftables`` data plane for :mod:`podwire.policy.tracing`: as planned, and as a kernel holds them.

Rules that the kernel holds are shown with their counters.
"""

from collections.abc import Mapping

from podwire.kernel.netns import NetnsPath
from podwire.kernel.nft import Nft
from podwire.kernel.nft_families import FAMILIES
from podwire.policy.compile import Compiler
from podwire.policy.contents import follow
from podwire.policy.dataplane import PolicyFacts
from podwire.policy.dataplanes.nftables.contents import Contents
from podwire.policy.dataplanes.nftables.dataplane import layout_of
from podwire.policy.dataplanes.nftables.layout import TABLE
from podwire.trace.nft import Tracer
from podwire.trace.packet import Machine


def planned(compiler: Compiler, devices: Mapping[str, str], facts: PolicyFacts, machine: Machine) -> Tracer:
    """A tracer over the tables that the data plane would program."""
    tables = []
    for family in FAMILIES:
        contents = Contents(layout_of(facts, family))
        follow(contents, compiler, compiler.everything(), devices)
        tables.append(contents.table())
    return Tracer(tables, machine)


def held(netns: NetnsPath, machine: Machine) -> Tracer | None:
    """A tracer over the tables that the kernel holds; None when it holds none.

    Raises: KernelError.
    """
    with Nft(netns) as kernel:
        read = (kernel.read(family, TABLE) for family in FAMILIES)
        tables = [table for table in read if table is not None]
    return Tracer(tables, machine) if tables else None
