"""The backends that this node can run now: those of the registry whose feature the kernel has.

A node whose kernel lacks the configured backend uses ``hostgw``, and reports that. A backend that encrypts has no
substitute: it is returned all the same, without keys, and its plan refuses packets to peers. Some backends are
configured by objects of the API (:class:`~podwire.routing.backend.ConfiguredByObjects`); they are followed when such a
backend is in use.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from podwire.routing.backend import Backend, ConfiguredByObjects
from podwire.routing.egress.plan import TABLE as EGRESS
from podwire.routing.registry import PLAIN
from podwire.routing.settings import RoutingSettings
from podwire.routing.tables import MASQUERADE
from podwire.runtime.registry import Registry


class UsableBackends:
    """The backends of a registry by what the kernel lacks; ``lacks`` returns a missing feature as text."""

    def __init__(self, registry: Registry[type[Backend]], lacks: Callable[[str], str]) -> None:
        self._registry = registry
        self._feature_lack = lacks
        self._loaded: tuple[RoutingSettings, dict[str, Backend]] | None = None
        self.objects: dict[str, Any] = {}
        """What the API objects of a backend say, by backend."""
        self.followers: Mapping[str, Callable[[], None]] = {}
        """By backend: called when API objects that configure the backend are needed."""
        self.lacks: dict[str, str] = {}
        """What the kernel lacks, by backend; empty text: nothing."""
        self.missing = ""
        """What the kernel lacks of the settings, and the substitute."""
        self.refused = ""
        """Why packets to all peers are refused; empty when they are not."""
        self.awaited: tuple[str, ...] = ()
        """Features that would change the choice if they appeared."""
        self.tables: tuple[str, ...] = ()
        """The names of all nftables tables that a plan may have."""

    def choose(self, settings: RoutingSettings) -> tuple[RoutingSettings, dict[str, Backend]]:
        """The settings with a backend that this kernel can run, and all backends that it can run."""
        if self._loaded is None or self._loaded[0] != settings:
            self._loaded = settings, settings.load(self._registry)
        _, every = self._loaded
        for name, objects in self.objects.items():
            backend = every.get(name)
            if isinstance(backend, ConfiguredByObjects):
                backend.take_objects(objects)
        features = {name: backend.feature for name, backend in every.items()}
        lacks = {name: self._feature_lack(feature) if feature else "" for name, feature in features.items()}
        usable = {name: backend for name, backend in every.items() if not lacks[name]}
        missing, self.refused, self.lacks, self.awaited = [], "", lacks, ()
        if lack := lacks[settings.backend]:
            problem, self.awaited = f"routing.backend {settings.backend}: {lack}", (features[settings.backend],)
            if every[settings.backend].options.encrypts:
                self.refused = f"{problem}; packets to and from pods of other nodes are refused until it is there"
                usable[settings.backend] = every[settings.backend]
            else:
                settings = msgspec.structs.replace(settings, backend=PLAIN)
            missing.append(self.refused or f"{problem}; using {PLAIN}")
        if (nftables := self._feature_lack("nftables")) and settings.masquerade_rules == "nftables":
            advice = "packets that leave the cluster keep the pods' addresses (routing.masqueradeRules: iptables)"
            missing.append(f"routing: {nftables}; {advice}")
        self.missing = "; ".join(missing)
        self.tables = (MASQUERADE, EGRESS, *(name for backend in every.values() for name in backend.tables))
        return settings, usable

    def unknown_objects(self, used: Iterable[str]) -> str:
        """Those backends in use whose API objects are not known yet; empty when there are none."""
        needed = sorted(self.followers.keys() & used)
        for name in needed:
            self.followers[name]()
        return ", ".join(name for name in needed if name not in self.objects)
