"""The loop by which balancers serve the Services of type LoadBalancer: finalizer, status, Events.

Guarantees: 1. the finalizer is on a Service before its address is allocated, and is removed when the address was
released; 2. the status has the addresses at which the Service is reachable, and nothing when it is not; 3. a Service of
a class without a balancer is not changed: without any balancer, all of them wait (``<pending>``); 4. a failure is a
Warning and is retried, after 5 ms doubling to 30 s for a failure of the API, and after 5 s doubling to 5 minutes for
one of the balancer; 5. a Service whose balancer no longer exists is released when it is deleted or changes its type, so
that it does not wait for ever.

Events have the names that cloud controllers use. Source: ``k8s.io/cloud-provider/controllers/service``.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from podwire.cluster.names import SERVICE_BALANCER
from podwire.controllers.service.balancer import LoadBalancer
from podwire.controllers.service.plan import Need, Patch, claim, need, release, status
from podwire.errors import ConfigError, LoadBalancerError, NotFound
from podwire.kube.client import MERGE_PATCH
from podwire.kube.controller import Environment
from podwire.kube.events import Severity, reference
from podwire.kube.ownwrites import OwnWrites
from podwire.kube.resources import SERVICES
from podwire.model.service import Service
from podwire.runtime.backoff import Backoff
from podwire.runtime.supervise import Supervisor

_FIRST_S, _CEILING_S = 5.0, 300.0
COMPONENT = "service-controller"


class ServiceController:
    """Services of type LoadBalancer, each served by the balancer of its class."""

    def __init__(self, environment: Environment, balancers: Iterable[LoadBalancer] = ()) -> None:
        """Raises: ConfigError when two balancers serve one class."""
        self._client = environment.client
        self._services = environment.of(SERVICES)
        self._own = OwnWrites(self._services)
        self._events = environment.recorder(COMPONENT)
        self._balancers: dict[str, LoadBalancer] = {}
        for balancer in balancers:
            other = self._balancers.setdefault(balancer.load_balancer_class, balancer)
            if other is not balancer:
                problem = f"{other.name} and {balancer.name} both serve the class {balancer.load_balancer_class!r}"
                raise ConfigError("controller", "loadBalancers", problem)
        self._classes = {name: balancer.name for name, balancer in self._balancers.items()}
        self._names = {balancer.name: balancer for balancer in self._balancers.values()}
        self._backoffs: dict[str, Backoff] = {}
        self._loop = environment.loop("service", self._reconcile)
        self._services.subscribe(self._changed)
        for balancer in self._balancers.values():
            balancer.watch(self._loop.touch)

    def start(self, supervisor: Supervisor) -> None:
        """Starts the loop."""
        self._loop.start(supervisor, workers=4)

    def _changed(self, key: str, _old: Service | None, new: Service | None) -> None:
        if new is None:
            self._backoffs.pop(key, None)
        elif need(new, self._classes) is not Need.NOTHING:
            self._loop.touch(key)

    async def _reconcile(self, key: str) -> None:
        service = self._services.get(key)
        if service is None:
            return
        if not self._own.caught_up(key):
            self._loop.queue.add_after(key, 1.0)
            return
        next_step = need(service, self._classes)
        try:
            if next_step is Need.ADDRESS:
                await self._serve(key, service)
            elif next_step is Need.RELEASE:
                await self._release(key, service)
        except LoadBalancerError as failure:
            self._event(service, "Warning", "SyncLoadBalancerFailed", f"Error syncing load balancer: {failure}")
            backoff = self._backoffs.setdefault(key, Backoff(_FIRST_S, _CEILING_S))
            self._loop.queue.add_after(key, backoff.next_delay_s())
            return
        self._backoffs.pop(key, None)

    async def _serve(self, key: str, service: Service) -> None:
        balancer = self._balancers[service.spec.load_balancer_class or ""]
        claimed = claim(service, balancer.name)
        if claimed is not None:
            self._event(service, "Normal", "EnsuringLoadBalancer", "Ensuring load balancer")
            await self._write(key, service, claimed)
            return  # The Service is queued again with its new state.
        ingress = await balancer.ensure(service)
        patch = status(service, ingress)
        if patch is not None:
            await self._write(key, service, patch, "status")
            self._event(service, "Normal", "EnsuredLoadBalancer", "Ensured load balancer")

    async def _release(self, key: str, service: Service) -> None:
        balancer = self._names.get(service.metadata.annotations[SERVICE_BALANCER])
        if balancer is not None:
            self._event(service, "Normal", "DeletingLoadBalancer", "Deleting load balancer")
            await balancer.release(service)
        patch = status(service, ())
        if patch is not None:
            service = await self._write(key, service, patch, "status")
        patch = release(service)
        if patch is not None:
            await self._write(key, service, patch)
            self._event(service, "Normal", "DeletedLoadBalancer", "Deleted load balancer")

    async def _write(self, key: str, service: Service, patch: Patch, subresource: str = "") -> Service:
        """The Service at the version in the API's answer; unchanged when it was deleted."""
        meta = service.metadata
        try:
            answer = await self._client.patch(
                SERVICES, meta.name, patch, meta.namespace, patch_type=MERGE_PATCH, subresource=subresource
            )
        except NotFound:
            return service
        self._own.wrote(key, answer)
        version = answer["metadata"]["resourceVersion"]
        return replace(service, metadata=replace(meta, resource_version=version))

    def _event(self, service: Service, severity: Severity, reason: str, text: str) -> None:
        self._events.event(reference("v1", "Service", service.metadata), severity, reason, text)
