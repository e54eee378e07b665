"""Constructs the part ``policy`` of the agent."""

from podwire.agent import dnsanswers, nodelocal, podbridges
from podwire.agent.policypart import PolicyPart, attached_pod
from podwire.agent.shared import Shared
from podwire.cni.gate import EnforcementGate
from podwire.cni.service import CniService


def add(shared: Shared, cni: CniService | None) -> None:
    """Adds the enforcement of policies for the pods of ``cni``, or of other CNI plugins when ``cni`` is None.

    Where the agent takes the place of another plugin (``cni.hostLocal``), policies apply to the pods of both.
    """
    both = bool(shared.config.cni.host_local)
    bridged = cni is not None and uses_bridge(shared, cni)
    part = PolicyPart(shared, bridges=cni is None or both or bridged)
    if cni is not None:
        cni.attachments.gate = EnforcementGate(part.enforcement.admission, part.attach, part.enforcement.detach)
        held = sorted(
            cni.leases.held.values(), key=lambda attachment: attachment.table
        )  # Each pod's first interface first.
        part.enforcement.restore(tuple(attached_pod(attachment, attachment.bridge) for attachment in held))
        if both:
            from podwire.agent.otherplugins import add_discovery

            add_discovery(shared, part)
        elif part.bridges is not None:
            podbridges.connect(shared, part.bridges, part.enforcement)
            podbridges.follow(shared, part.bridges, part.enforcement)
    else:
        from podwire.agent.otherplugins import add as add_other_plugins

        add_other_plugins(shared, part)
    part.connect()
    enforcement = part.enforcement if cni is not None else None
    dnsanswers.add(shared, enforcement)
    nodelocal.add(shared, enforcement)


def uses_bridge(shared: Shared, cni: CniService) -> bool:
    """Whether pods of podwire are ports of a bridge: new ones, or some of those that run."""
    return shared.config.cni.link == "bridge" or any(held.bridge for held in cni.leases.held.values())
