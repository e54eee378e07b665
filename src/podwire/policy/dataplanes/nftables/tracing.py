"""The tables of the ``nftables`` data plane for :mod:`podwire.policy.tracing`: as planned, and as a kernel holds them.

Rules that the kernel holds are shown with what their counters say.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from podwire.kernel.nft import Nft
from podwire.kernel.nft_families import FAMILIES
from podwire.policy.compile import Compiler
from podwire.policy.contents import follow
from podwire.policy.dataplane import Facts
from podwire.policy.dataplanes.nftables.contents import Contents
from podwire.policy.dataplanes.nftables.dataplane import layout_of
from podwire.policy.dataplanes.nftables.layout import TABLE
from podwire.state.nft import Table
from podwire.trace import nft
from podwire.trace.packet import Machine, Outcome, Packet, Step


class Tracer:
    """Tables, and what their chains are about."""

    def __init__(self, tables: Iterable[Table], machine: Machine) -> None:
        held = tuple(tables)
        self._tracer = nft.Tracer(held, machine)
        self._comments = {
            (f"{table.family} {table.name}", chain.name): chain.comment for table in held for chain in table.chains
        }

    def trace(self, packet: Packet) -> Outcome:
        """What becomes of a packet."""
        return self._tracer.trace(packet)

    def about(self, step: Step) -> str:
        """What the comment of the step's chain says: policies of a profile, or the rule of a policy."""
        return self._comments.get((step.table, step.chain), "")


def planned(compiler: Compiler, devices: Mapping[str, str], facts: Facts, machine: Machine) -> Tracer:
    """What would be programmed."""
    tables = []
    for family in FAMILIES:
        contents = Contents(layout_of(facts, family))
        follow(contents, compiler, compiler.everything(), devices)
        tables.append(contents.table())
    return Tracer(tables, machine)


def held(netns: Path | str | None, machine: Machine) -> Tracer | None:
    """What is programmed.

    Raises: KernelError.
    """
    with Nft(netns) as kernel:
        read = (kernel.read(family, TABLE) for family in FAMILIES)
        tables = [table for table in read if table is not None]
    return Tracer(tables, machine) if tables else None
