"""The rules of the ``iptables`` data plane for :mod:`podwire.proxy.tracing`: as planned, and as the kernel holds them.

Held rules come from iptables-save, which prints everything; with them come the lists in which the kernel remembers
clients (``-m recent``).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from podwire.kernel import xt_recent
from podwire.kernel.iptables import FAMILIES
from podwire.kernel.netns import NetnsPath
from podwire.proxy.dataplanes.iptables.contents import Contents
from podwire.proxy.dataplanes.iptables.layout import IptablesLayout
from podwire.proxy.servicemap import NodeFacts, ServiceMap, ports_of_family
from podwire.state.chain_marks import PROXY_IPTABLES
from podwire.state.iptables import Ruleset
from podwire.state.value import StateValue
from podwire.trace.iptables import Tracer
from podwire.trace.packet import LocalAddresses

OWNER_MARKS: Mapping[str, Any] = {"iptables": PROXY_IPTABLES}


def planned(services: ServiceMap, facts: NodeFacts, machine: LocalAddresses) -> Tracer:
    """The state that would be programmed."""
    rulesets: list[Ruleset] = []
    for family in FAMILIES:
        contents = Contents(IptablesLayout(family, facts))
        contents.change(ports_of_family(services, family))
        rulesets += contents.rulesets()
    return Tracer(rulesets, machine)


def held(values: Sequence[StateValue], netns_path: NetnsPath, machine: LocalAddresses) -> Tracer:
    """The state that the kernel holds.

    Raises: KernelError.
    """
    tracer = Tracer([value for value in values if isinstance(value, Ruleset)], machine)
    tracer.recent = xt_recent.read(netns_path)
    return tracer
