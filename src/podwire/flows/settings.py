"""The settings of a run of numbered flows."""

from pathlib import Path

import msgspec

from podwire.flows.objects import FlowProgram


class FlowSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What runs: the program of the pods, milliseconds between messages, and which parts.

    ``folder`` is where counts of flows from outside are kept; None: there are none.
    """

    program: FlowProgram
    interval_ms: int = 50
    folder: Path | None = None
    record: bool = True
    balancer_s: float = 30.0
    """How long to wait for the address of a load balancer or an Ingress, which a cluster may not give."""
    balancer_class: str | None = ""
    """The class of the Service with an address of a load balancer; empty: the cluster's default; None: no address."""
    ingress_class: str | None = ""
    """The class of the Ingress; empty: the cluster's default; None: there is no Ingress."""
    nodes: tuple[str, ...] = ()
    dns: tuple[str, str] = ("kube-system", "kube-dns")
    domain: str = "cluster.local"
