"""Applies the settings of policies while policies are enforced."""

import msgspec

from podwire.policy.bridges.dataplane import BridgeIsolation
from podwire.policy.flows import FlowKeeper
from podwire.policy.nodestatus import PolicyStatus
from podwire.policy.runner import Enforcement
from podwire.policy.settings import PolicySettings
from podwire.policy.switch import Switch


class PolicyConfigurator(msgspec.Struct, frozen=True, kw_only=True):
    """The parts that follow the settings; ``cluster_cidrs`` are the pod ranges where nodes have none."""

    status: PolicyStatus
    plane: Switch
    enforcement: Enforcement
    flows: FlowKeeper
    bridges: BridgeIsolation | None
    cluster_cidrs: tuple[str, ...]

    def configure(self, settings: PolicySettings, tunnel_ports: tuple[int, ...]) -> None:
        """Applies settings; ``tunnel_ports`` are the UDP ports of the nodes' own tunnels."""
        settings = self.status.configure(settings)
        if settings.mode != self.plane.configured_mode:
            self.plane.configured_mode = settings.mode
            self.enforcement.look_again()
        self.enforcement.configure(settings, tunnel_ports, self.cluster_cidrs)
        if self.bridges is not None:
            self.bridges.enable_netfilter = settings.bridge_netfilter == "set"
        self.flows.configure(strict=settings.established == "strict")
