"""What both kinds of objects need of the API: Services with their endpoints, certificates and authorities.

A change of endpoints is published at once, without a translation, for the backends that the entry of a part has.
"""

from typing import Any

import msgspec

from podwire.gateway.backends import Place, UpstreamFacts, endpoints_of
from podwire.gateway.certificates import authority_of, certificate_of, client_authority
from podwire.gateway.engines import EngineFeed
from podwire.gateway.routes import Certificate, EntryBackend, TrustedAuthority
from podwire.kube.controller import Environment
from podwire.kube.index import Index
from podwire.kube.informer import Informer
from podwire.kube.resources import CONFIGMAPS, ENDPOINTSLICES, SECRETS, SERVICES
from podwire.model.service import SERVICE_NAME_LABEL, EndpointSlice


class Upstreams:
    """Services, endpoints and certificates for the entry of one part."""

    def __init__(self, environment: Environment, feed: EngineFeed, part: str) -> None:
        self._feed = feed
        self._part = part
        self._services = environment.of(SERVICES)
        self._secrets = environment.of(SECRETS)
        slices = environment.of(ENDPOINTSLICES)
        self._slices: Index[EndpointSlice] = Index(slices, _service_of)
        self.version = 0
        """Counts changes of what the answers follow from."""
        self._place = Place()
        self._config_maps = environment.of(CONFIGMAPS)
        self._certificates: dict[str, tuple[str, Certificate | str]] = {}
        self._authorities: dict[str, tuple[str, TrustedAuthority | str]] = {}
        slices.subscribe(self._endpoints_changed, replay=False)
        followed: tuple[Informer[Any], ...] = (self._services, self._secrets, self._config_maps)
        for informer in followed:
            informer.subscribe(lambda _key, _old, _new: self._count(), replay=False)

    def set_place(self, place: Place) -> None:
        """Takes where the engine of this pod is."""
        self._place = place
        self._count()

    def _count(self) -> None:
        self.version += 1

    @property
    def facts(self) -> UpstreamFacts:
        """Services and their endpoints."""
        return UpstreamFacts(services=self._services.objects, slices=self._slices_of, place=self._place)

    def certificate(self, key: str) -> Certificate | str:
        """The certificate of a Secret, or the reason why it has none."""
        version = self._secrets.versions.get(key, "")
        cached = self._certificates.get(key)
        if cached is None or cached[0] != version:
            cached = (version, certificate_of(key, self._secrets.get(key)))
            self._certificates[key] = cached
        return cached[1]

    def client_authority(self, key: str) -> TrustedAuthority | str:
        """The authorities of clients in a Secret, or the reason why it has none."""
        return client_authority(key, self._secrets.get(key))

    def authority(self, key: str) -> TrustedAuthority | str:
        """The certificates of authorities in a ConfigMap, or the reason why it has none."""
        version = self._config_maps.versions.get(key, "")
        cached = self._authorities.get(key)
        if cached is None or cached[0] != version:
            cached = (version, authority_of(key, self._config_maps.get(key)))
            self._authorities[key] = cached
        return cached[1]

    def _slices_of(self, service_key: str) -> tuple[EndpointSlice, ...]:
        return tuple(self._slices.of(service_key).values())

    def _endpoints_changed(self, _key: str, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        self._count()
        entry = self._feed.entries.get(self._part)
        if entry is None:
            return
        changed = {service for item in (old, new) if item is not None for service in _service_of(item)}
        backends: dict[str, EntryBackend] = {}
        for key, backend in entry.backends.items():
            if backend.shares or backend.first_of:
                continue
            service_key, _, port = key.partition("#")[0].rpartition(":")
            if service_key in changed and not backend.fixed:
                fresh = self._with_endpoints(backend, service_key, int(port))
                if fresh != backend:
                    backends[key] = fresh
        self._feed.publish_endpoints(self._part, backends)

    def _with_endpoints(self, backend: EntryBackend, service_key: str, number: int) -> EntryBackend:
        service = self._services.get(service_key)
        ports = service.spec.ports if service is not None else ()
        transport = "UDP" if backend.protocol == "udp" else "TCP"
        port = next((entry for entry in ports if (entry.port, entry.protocol) == (number, transport)), None)
        if port is None:
            return backend
        return msgspec.structs.replace(backend, endpoints=endpoints_of(self._slices_of(service_key), port, self._place))


def _service_of(item: EndpointSlice) -> tuple[str, ...]:
    name = item.metadata.labels.get(SERVICE_NAME_LABEL, "")
    return (f"{item.metadata.namespace}/{name}",) if name else ()
