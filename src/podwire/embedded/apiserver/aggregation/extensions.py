"""The groups and versions that extension API servers serve, as APIServices register them.

An APIService with ``spec.service`` replaces a group and version that this server serves itself. The exception is the
group ``apiregistration.k8s.io``: without it, no user could remove the APIService again. The documents of an extension
API server are kept while the extension is unavailable. Source: ``k8s.io/kube-aggregator/pkg/apiserver``.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from podwire.embedded.apiserver.aggregation.status import TABLE, is_available
from podwire.embedded.apiserver.dial import ServiceAddress
from podwire.embedded.apiserver.store import ObjectChange, Store, StoredObject

Object = dict[str, Any]

GROUP = "apiregistration.k8s.io"


class Extension(msgspec.Struct, frozen=True):
    """A group and version, and the Service that serves it."""

    name: str
    """The name of the APIService."""
    group: str
    version: str
    service: ServiceAddress
    ca_bundle: str = ""
    """Certificates (PEM) in base64; the machine's own authorities when empty."""
    insecure: bool = False
    """Whether the server's certificate is not checked."""
    group_priority: int = 0
    version_priority: int = 0

    @property
    def path(self) -> str:
        """``apis/GROUP/VERSION``."""
        return f"apis/{self.group}/{self.version}"


class ExtensionDocuments(msgspec.Struct, frozen=True):
    """The discovery and OpenAPI documents of an extension API server for a group and version."""

    resources: tuple[Object, ...] = ()
    """The entries of its APIResourceList."""
    v3: bytes = b""
    """The OpenAPI document of version 3, in JSON; empty when there is none."""
    v2: bytes = b""
    """The part of its OpenAPI document of version 2 that is about them, in JSON; empty when there is none."""


class Extensions:
    """The registered extensions."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._served: dict[tuple[str, str], Extension] = {}
        self._available: frozenset[str] = frozenset()
        self._documents: dict[str, ExtensionDocuments] = {}
        self.on_change: list[Callable[[], None]] = []
        """Called when extensions, their availability or their documents have changed."""

    def start(self) -> None:
        """Reads the APIServices, and follows their changes from then on."""
        self._derive()
        self._store.table(TABLE).listeners[self._committed] = None

    def _committed(self, _: list[ObjectChange]) -> None:
        self._derive()

    def _derive(self) -> None:
        entries = [entry for entry in self._store.entries(TABLE) if b'"service"' in entry.raw]
        pairs = [(entry, extension) for entry in entries if (extension := _extension(entry)) is not None]
        served = {(extension.group, extension.version): extension for _, extension in pairs}
        available = frozenset(entry.name for entry, _ in pairs if is_available(entry.object()))
        if (served, available) == (self._served, self._available):
            return
        self._served, self._available = served, available
        names = {extension.name for extension in served.values()}
        self._documents = {name: document for name, document in self._documents.items() if name in names}
        self._tell()

    def _tell(self) -> None:
        for observer in tuple(self.on_change):
            observer()

    def __bool__(self) -> bool:
        return bool(self._served)

    def serving(self, group: str, version: str) -> Extension | None:
        """The extension that serves a group and version."""
        return self._served.get((group, version))

    def all(self) -> Iterable[Extension]:
        """Every extension."""
        return self._served.values()

    def serves(self, api_version: str) -> bool:
        """Whether an extension serves ``GROUP/VERSION``."""
        group, _, version = api_version.partition("/")
        return (group, version) in self._served

    def is_available(self, extension: Extension) -> bool:
        """Whether requests are passed on to the extension."""
        return extension.name in self._available

    def documents(self, extension: Extension) -> ExtensionDocuments:
        """The documents that the extension published last."""
        return self._documents.get(extension.name, ExtensionDocuments())

    def learn(self, extension: Extension, documents: ExtensionDocuments) -> None:
        """Stores the documents of the extension."""
        if self.serving(extension.group, extension.version) == extension and self.documents(extension) != documents:
            self._documents[extension.name] = documents
            self._tell()

    def v3_documents(self) -> Mapping[str, bytes]:
        """The OpenAPI documents of version 3 by path (``apis/GROUP/VERSION``); empty ones too."""
        return {extension.path: self.documents(extension).v3 for extension in self.all()}

    def v2_documents(self) -> Mapping[str, bytes]:
        """The OpenAPI documents of version 2 by path (``apis/GROUP/VERSION``) of the extension."""
        return {extension.path: self.documents(extension).v2 for extension in self.all()}


def _extension(entry: StoredObject) -> Extension | None:
    spec = entry.object().get("spec") or {}
    service = spec.get("service")
    if not service or not spec.get("group") or spec["group"] == GROUP:
        return None
    return Extension(
        entry.name, spec["group"], spec["version"],
        ServiceAddress(service["namespace"], service["name"], service.get("port") or 443),
        spec.get("caBundle") or "", bool(spec.get("insecureSkipTLSVerify")),
        spec["groupPriorityMinimum"], spec["versionPriority"],
    )  # fmt: skip
