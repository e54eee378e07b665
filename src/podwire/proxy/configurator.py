"""Applies the settings of the proxy, and the address ranges of Services, while the proxy runs."""

from collections.abc import Callable

import msgspec

from podwire.proxy.flows import UDP, UDP_AND_TCP, FlowCleaner, Forgotten, flow_cleaner
from podwire.proxy.healthchecks import MovableServer
from podwire.proxy.runner import ServiceProxy
from podwire.proxy.servicecidrs import ServiceCidrs
from podwire.proxy.servicemap import NodeFacts, ResolvedPort
from podwire.proxy.settings import ProxySettings
from podwire.proxy.switch import Switch
from podwire.proxy.tuning import Tuning


class ProxyConfiguration:
    """The settings in force, and the facts of the node that follow from them."""

    def __init__(
        self, settings: ProxySettings, node: str, cluster_cidrs: tuple[str, ...], service_cidrs: ServiceCidrs
    ) -> None:
        self.settings = settings
        self._node = node
        self._cluster_cidrs = cluster_cidrs
        self._service_cidrs = service_cidrs
        self.further_cidrs: tuple[str, ...] = ()
        """The ranges of further pod networks."""

    @property
    def facts(self) -> NodeFacts:
        """The facts without those of the Node object."""
        cidrs = (*self._cluster_cidrs, *self.further_cidrs)
        return self.settings.facts(self._node, cidrs, self._service_cidrs.ranges)


def configured_cleaner(
    configuration: ProxyConfiguration, node_addresses: Callable[[], tuple[str, ...]], mode: Callable[[], str]
) -> FlowCleaner:
    """The flow cleaner of this process's namespace, for the settings and the mode in force at each change."""

    def clean(
        before: tuple[ResolvedPort, ...], after: tuple[ResolvedPort, ...], *, gap: bool = False
    ) -> Callable[[], Forgotten] | None:
        protocols = UDP_AND_TCP if configuration.settings.reset_connections else UDP
        return flow_cleaner(node_addresses, None, protocols, mode=mode())(before, after, gap=gap)

    return clean


class ConfiguredParts(msgspec.Struct, frozen=True):
    """The parts of a running proxy that follow the settings."""

    proxy: ServiceProxy
    plane: Switch
    health_server: MovableServer
    metrics_server: MovableServer
    tuning: Tuning


class ProxyConfigurator:
    """Applies settings to all parts of the proxy."""

    def __init__(self, configuration: ProxyConfiguration, parts: ConfiguredParts) -> None:
        self._configuration = configuration
        self._parts = parts

    def configure(self, settings: ProxySettings, further_cidrs: tuple[str, ...] = ()) -> None:
        """Applies other settings, and other ranges of further pod networks; equal ones change nothing."""
        configuration, parts = self._configuration, self._parts
        if (settings, further_cidrs) == (configuration.settings, configuration.further_cidrs):
            return
        configuration.further_cidrs = further_cidrs
        configuration.settings = settings
        parts.tuning.apply(settings)
        parts.health_server.move(settings.healthz)
        parts.metrics_server.move(settings.metrics)
        parts.plane.configured_mode = settings.mode
        self.facts_changed()

    def facts_changed(self) -> None:
        """Programs all Services again with the facts as they are now."""
        self._parts.proxy.configure(self._configuration.facts)
