"""The aggregation layer: wires its components."""

from collections.abc import Callable, Mapping

from podwire.embedded.apiserver.aggregation.availability import AvailabilityChecks
from podwire.embedded.apiserver.aggregation.client import ExtensionClient
from podwire.embedded.apiserver.aggregation.content import ExtensionContent
from podwire.embedded.apiserver.aggregation.extensions import Extensions
from podwire.embedded.apiserver.aggregation.frontproxy import AuthenticationTrust, FrontProxy
from podwire.embedded.apiserver.aggregation.local import LocalServices
from podwire.embedded.apiserver.dial import ServiceDialer
from podwire.embedded.apiserver.kinds import Key, ResourceKind
from podwire.embedded.apiserver.relay import RequestRelay
from podwire.embedded.apiserver.settings import ApiServerSettings
from podwire.embedded.apiserver.store import Store
from podwire.embedded.apiserver.writes import Writer
from podwire.runtime.clock import Clock
from podwire.runtime.tasks import TaskSet


class AggregationLayer:
    """Serves the API groups of extension API servers as groups of this server."""

    def __init__(self, settings: ApiServerSettings, store: Store, dialer: ServiceDialer, tasks: TaskSet) -> None:
        self._settings = settings
        self._store = store
        self._tasks = tasks
        self._local: LocalServices | None = None
        self.extensions = Extensions(store)
        self.client = ExtensionClient(self.extensions, dialer, FrontProxy(settings), RequestRelay(tasks))
        self.content = ExtensionContent(self.extensions, self.client)

    def start(self, writer: Writer, kinds: Mapping[Key, ResourceKind], clock: Clock) -> None:
        """Writes the layer's ConfigMap and APIServices, and starts the checks of extensions."""
        AuthenticationTrust(self._store, writer, self._settings).start()
        self._local = LocalServices(self._store, kinds, clock, self._tasks)
        self._local.start()
        AvailabilityChecks(self._store, self.extensions, self.client, self._tasks, clock).start()

    def kinds_changed(self) -> None:
        """Brings the APIServices in step with the kinds that this server serves."""
        if self._local is not None:
            self._local.changed()

    def follow(self, *observers: Callable[[], None]) -> None:
        """Reads the registered extensions; observers are called when they change."""
        self.extensions.on_change += observers
        self.extensions.start()
