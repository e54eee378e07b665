"""Chooses the BGP engine that announces load balancer addresses on a node: that of routing, or a separate one."""

from pathlib import Path

from podwire.agent.shared import Shared
from podwire.bgp.configuration import BgpConfiguration, ServiceRoutes
from podwire.bgp.process import bird_child, router_id
from podwire.cluster.degraded import FEATURE_MISSING
from podwire.errors import ConfigError
from podwire.loadbalancer.devices import AnsweringDevices
from podwire.loadbalancer.ranges import parse_address
from podwire.runtime.children import ChildEvent, Children, spawn_program
from podwire.runtime.supervise import Supervisor


class BgpEngine:
    """Where routes of load balancers are announced: by the BIRD of the backend ``bgp``, else by a BIRD of their own.

    Two processes would have two sessions with one router, which a router takes for one that breaks again and again.
    """

    def __init__(self, shared: Shared, devices: AnsweringDevices, supervisor: Supervisor) -> None:
        self._shared = shared
        self._devices = devices
        self._run_dir = Path(shared.config.run_dir, "loadbalancer")
        self._children = Children(self._run_dir / "children", spawn_program, supervisor, shared.clock, self._note)

    def _note(self, event: ChildEvent) -> None:
        self._shared.degraded.report("balancer routes", FEATURE_MISSING, "")

    async def deliver(self, routes: ServiceRoutes) -> None:
        """Makes the engine announce exactly these routes.

        Raises: ConfigError, OSError.
        """
        if self._shared.take_service_routes(routes):
            await self._children.apply(())
            return
        if not routes.sessions:
            await self._children.apply(())
            self._shared.degraded.report("balancer routes", FEATURE_MISSING, "")
            return
        if lack := self._shared.features.lacks("bird"):
            self._shared.degraded.report("balancer routes", FEATURE_MISSING, f"{lack}; no address is announced by BGP")
            return
        self._shared.degraded.report("balancer routes", FEATURE_MISSING, "")
        await self._children.apply((bird_child(str(self._run_dir), self._configuration(routes)),))

    def _configuration(self, routes: ServiceRoutes) -> BgpConfiguration:
        link = self._devices.own_device()
        if not link:
            raise ConfigError("load balancers", "", "no device has the address of this node")
        node = self._shared.own_node()
        addresses = [parse_address(text) for text in (node.internal_ips if node is not None else ())]
        first = next((address for address in addresses if address is not None and address.version == 4), None)
        return BgpConfiguration(
            router_id=router_id(first, self._shared.config.node_name),
            link=link,
            service_networks=routes.networks,
            sessions=routes.sessions,
            log_file=f"{self._run_dir}/bird.log",
        )
