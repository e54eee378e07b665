"""What the routes of a host read of the cluster: backends of Services and URLs, what Secrets and ConfigMaps hold."""

from collections.abc import Callable, Mapping

import msgspec

from podwire.gateway.backends import Resolved, UpstreamFacts
from podwire.gateway.ingress.urlbackends import UrlTarget, target_of
from podwire.gateway.lookups import BackendLookups, Recorder
from podwire.gateway.routes import Certificate, TrustedAuthority
from podwire.model.service import Service


class ObjectFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What Secrets and ConfigMaps hold, by key.

    ``users`` gives the users of a Secret, None where it cannot be read; ``certificate`` and ``authority`` give the
    reason where there is none.
    """

    users: Callable[[str, str], str | None] = lambda _key, _kind: None
    certificate: Callable[[str], Certificate | str] = lambda key: f"Secret {key} does not exist"
    authority: Callable[[str], TrustedAuthority | str] = lambda key: f"Secret {key} does not exist"
    config_map: Callable[[str], Mapping[str, str] | None] = lambda _key: None


class ClusterLookups:
    """Answers questions; known from one translation to the next."""

    def __init__(self) -> None:
        self._backends = BackendLookups()
        self._objects = ObjectFacts()
        self.config_maps: set[str] = set()
        """The ConfigMaps that were asked for since something in the cluster changed."""

    def renew(self, upstreams: UpstreamFacts, objects: ObjectFacts, *, same: bool) -> None:
        """Takes the facts of the next translation; ``same`` ones give the answers that are known."""
        self._objects = objects
        if same:
            self._backends.upstreams = upstreams
            return
        self._backends.renew(upstreams)
        self.config_maps = set()

    def resolve(self, namespace: str, name: str, port: str | int) -> Resolved:
        """The backend of a Service port."""
        return self._backends.resolve(namespace, name, port)

    def users(self, key: str, kind: str) -> str | None:
        """The users of a Secret."""
        return self._objects.users(key, kind)

    def certificate(self, key: str) -> Certificate | str:
        """The certificate of a Secret, or the reason why it has none."""
        return self._objects.certificate(key)

    def authority(self, key: str) -> TrustedAuthority | str:
        """The authorities in a Secret, or the reason why it has none."""
        return self._objects.authority(key)

    def config_map(self, key: str) -> Mapping[str, str] | None:
        """The data of a ConfigMap, None where there is none."""
        self.config_maps.add(key)
        return self._objects.config_map(key)

    def target(self, url: str, variant: str) -> UrlTarget:
        """The backend of a URL."""
        return target_of(url, self._backends.upstreams, variant)

    def service(self, key: str) -> Service | None:
        """A Service."""
        return self._backends.upstreams.services.get(key)


class RecordedLookups(Recorder):
    """The questions of one host, with their answers."""

    def __init__(self, lookups: ClusterLookups) -> None:
        super().__init__()
        self._lookups = lookups

    def resolve(self, namespace: str, name: str, port: str | int) -> Resolved:
        """The backend of a Service port."""
        return self.ask(self._lookups.resolve, namespace, name, port)

    def users(self, key: str, kind: str) -> str | None:
        """The users of a Secret, None where they cannot be read."""
        return self.ask(self._lookups.users, key, kind)

    def certificate(self, key: str) -> Certificate | str:
        """The certificate of a Secret, or the reason why it has none."""
        return self.ask(self._lookups.certificate, key)

    def authority(self, key: str) -> TrustedAuthority | str:
        """The authorities in a Secret, or the reason why it has none."""
        return self.ask(self._lookups.authority, key)

    def config_map(self, key: str) -> Mapping[str, str] | None:
        """The data of a ConfigMap, None where there is none."""
        return self.ask(self._lookups.config_map, key)

    def target(self, url: str, variant: str) -> UrlTarget:
        """The backend of a URL."""
        return self.ask(self._lookups.target, url, variant)

    def service(self, key: str) -> Service | None:
        """A Service."""
        return self.ask(self._lookups.service, key)
