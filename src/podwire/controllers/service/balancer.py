"""The interface of load balancers, which allocate addresses for Services of type LoadBalancer.

A balancer serves one ``loadBalancerClass`` (empty: Services without a class). It is called for a Service as long as the
Service needs an address, and once when it no longer does. How and where it announces addresses is up to the balancer.
"""

from collections.abc import Callable
from typing import Protocol

from podwire.model.service import LoadBalancerIngress, Service


class LoadBalancer(Protocol):
    """One implementation of load balancers."""

    @property
    def name(self) -> str:
        """Its name, by which it recognizes the Services that it served before a restart."""
        ...

    @property
    def load_balancer_class(self) -> str:
        """The class of the Services that it serves; empty: those without a class."""
        ...

    async def ensure(self, service: Service) -> tuple[LoadBalancerIngress, ...]:
        """Makes the Service reachable from outside and returns its addresses; called at every change of the Service.

        Raises: LoadBalancerError when that is not possible now; the previous state stays in force.
        """
        ...

    async def release(self, service: Service) -> None:
        """Reverts :meth:`ensure`; called again until it returns.

        Raises: LoadBalancerError when that is not possible now.
        """
        ...

    def watch(self, changed: Callable[[str], None]) -> None:
        """Registers ``changed``, to be called with ``namespace/name`` when a Service must be reconciled again."""
        ...
