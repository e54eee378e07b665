"""Services whose address is somebody's work: keeps the clean-up finalizer in step with the type.

A Service that is no longer of type LoadBalancer and still carries ``service.kubernetes.io/load-balancer-cleanup``
after its ``status.loadBalancer`` was emptied loses the finalizer, so that it can go. Giving addresses out is
the load balancer's part.
"""

from podwire.controllers.environment import Environment
from podwire.kube.resources import SERVICES
from podwire.model.service import Service
from podwire.runtime.supervise import Supervisor

FINALIZER = "service.kubernetes.io/load-balancer-cleanup"


def releasable(service: Service) -> bool:
    """Whether the finalizer has nothing left to wait for."""
    wants = service.spec.type == "LoadBalancer" and service.metadata.deletion_timestamp is None
    return FINALIZER in service.metadata.finalizers and not wants and not service.status.load_balancer.ingress


class ServiceController:
    """Removes finalizers that nobody waits for."""

    def __init__(self, environment: Environment) -> None:
        self._client = environment.client
        self._services = environment.of(SERVICES)
        self._loop = environment.loop("service", self._reconcile)
        self._services.subscribe(self._changed)

    def start(self, supervisor: Supervisor) -> None:
        """Starts the loop."""
        self._loop.start(supervisor, workers=1)

    def _changed(self, key: str, _old: Service | None, new: Service | None) -> None:
        if new is not None and FINALIZER in new.metadata.finalizers:
            self._loop.touch(key)

    async def _reconcile(self, key: str) -> None:
        service = self._services.get(key)
        if service is None or not releasable(service):
            return
        meta = service.metadata
        kept = [name for name in meta.finalizers if name != FINALIZER]
        patch = {"metadata": {"finalizers": kept, "resourceVersion": meta.resource_version}}
        await self._client.patch(SERVICES, meta.name, patch, meta.namespace)
