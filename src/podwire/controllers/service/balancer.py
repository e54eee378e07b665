"""What gives Services of type LoadBalancer their addresses, as the Service controller sees it.

A balancer serves one ``loadBalancerClass`` (empty: the Services that name none). It is told of a Service as long as
that wants an address, and once when it does not any more; how it announces addresses, and where, is its own work.
"""

from collections.abc import Callable
from typing import Protocol

from podwire.model.service import LoadBalancerIngress, Service


class LoadBalancer(Protocol):
    """One implementation of load balancers."""

    @property
    def name(self) -> str:
        """Its name, by which the Services that it served are known after a restart."""
        ...

    @property
    def load_balancer_class(self) -> str:
        """The class of the Services that it serves; empty: those without a class."""
        ...

    async def ensure(self, service: Service) -> tuple[LoadBalancerIngress, ...]:
        """Makes the Service reachable from outside and returns where; called again with every change of it.

        Raises: LoadBalancerError when that cannot be done now; what was in force stays.
        """
        ...

    async def release(self, service: Service) -> None:
        """Takes back all that :meth:`ensure` gave; called again until it returns.

        Raises: LoadBalancerError when that cannot be done now.
        """
        ...

    def watch(self, changed: Callable[[str], None]) -> None:
        """Has ``changed`` called with ``namespace/name`` when a Service should be looked at again."""
        ...
