"""Writes the addresses at which Ingresses are served into their status; only the leader of several gateways does.

Guarantees: 1. only Ingresses of our classes get addresses; 2. an Ingress that stops being ours loses the addresses that
were written here; 3. a status that is right is not written.
"""

from podwire.gateway.ingress.controller import COMPONENT, IngressController
from podwire.kube.client import MERGE_PATCH
from podwire.kube.controller import Environment
from podwire.kube.resources import INGRESSES, SERVICES
from podwire.model.ingress import IngressAddress
from podwire.model.meta import key_of
from podwire.model.service import Service
from podwire.runtime.supervise import Supervisor


def addresses_of(service: Service | None, fixed: tuple[str, ...]) -> tuple[IngressAddress, ...]:
    """The addresses of a Service: those of its load balancer, else its external or cluster ones."""
    if fixed:
        return tuple(_address(text) for text in fixed)
    if service is None:
        return ()
    balanced = tuple(
        IngressAddress(ip=entry.ip, hostname=entry.hostname) for entry in service.status.load_balancer.ingress
    )
    if balanced or service.spec.type == "LoadBalancer":
        return balanced
    addresses = service.spec.external_ips or tuple(ip for ip in service.spec.cluster_ips if ip != "None")
    return tuple(IngressAddress(ip=ip) for ip in addresses)


def _address(text: str) -> IngressAddress:
    is_name = any(character.isalpha() for character in text) and ":" not in text
    return IngressAddress(hostname=text) if is_name else IngressAddress(ip=text)


class IngressStatusWriter:
    """Keeps ``status.loadBalancer`` of all Ingresses of a controller."""

    def __init__(
        self, environment: Environment, controller: IngressController, service: str, fixed: tuple[str, ...]
    ) -> None:
        self._client = environment.client
        self._controller = controller
        self._service = service
        self._fixed = fixed
        self._ingresses = environment.of(INGRESSES)
        self._services = environment.of(SERVICES)
        self._written: set[str] = set()
        self._loop = environment.loop(f"{COMPONENT} status", self._reconcile)
        self._services.subscribe(self._service_changed, replay=False)
        self._ingresses.subscribe(lambda key, _old, _new: self._loop.touch(key), replay=False)
        controller.on_served = self.touch_all

    def start(self, supervisor: Supervisor) -> None:
        """Starts to write."""
        self.touch_all()
        self._loop.start(supervisor, workers=2)

    def touch_all(self) -> None:
        """Looks at every Ingress again."""
        for key in {key_of(ingress.metadata) for ingress in self._controller.served} | self._written:
            self._loop.touch(key)

    def _service_changed(self, key: str, _old: Service | None, _new: Service | None) -> None:
        if key == self._service:
            self.touch_all()

    async def _reconcile(self, key: str) -> None:
        ingress = self._ingresses.get(key)
        if ingress is None:
            self._written.discard(key)
            return
        served = any(key_of(entry.metadata) == key for entry in self._controller.served)
        if not served and key not in self._written:
            return
        addresses = addresses_of(self._services.get(self._service), self._fixed) if served else ()
        if ingress.status.load_balancer.ingress == addresses:
            return
        entries = [
            {name: value for name, value in (("ip", entry.ip), ("hostname", entry.hostname)) if value}
            for entry in addresses
        ]
        patch = {"status": {"loadBalancer": {"ingress": entries or None}}}
        meta = ingress.metadata
        await self._client.patch(
            INGRESSES.raw, meta.name, patch, meta.namespace, subresource="status", patch_type=MERGE_PATCH
        )
        if served:
            self._written.add(key)
        else:
            self._written.discard(key)
