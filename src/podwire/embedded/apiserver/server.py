"""The API server as a process: wires its components and runs until it is stopped.

``python -m podwire.embedded.apiserver.server --config FILE`` starts one by itself. SIGTERM and SIGINT end it in order:
watches are closed, pending writes are written. SIGKILL loses nothing either: acknowledged writes are on the disk.
"""

import asyncio
import contextlib
import datetime
import gc
import signal
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import msgspec

from podwire.embedded.apiserver import bootstrap, failures
from podwire.embedded.apiserver.admission.chain import AdmissionChain, AdmissionContext
from podwire.embedded.apiserver.admission.policies.typechecking import PolicyTypeChecker
from podwire.embedded.apiserver.admission.webhookclient import WebhookClient
from podwire.embedded.apiserver.aggregation.layer import AggregationLayer
from podwire.embedded.apiserver.aggregation.owners import ForeignOwners
from podwire.embedded.apiserver.audit import AuditLog
from podwire.embedded.apiserver.auth import Authenticator, ServiceAccountTokens
from podwire.embedded.apiserver.authorization.authorizer import Authorizer
from podwire.embedded.apiserver.authorization.reconcile import Aggregation, ensure_defaults
from podwire.embedded.apiserver.calls import Call
from podwire.embedded.apiserver.componentstatus import ComponentStatuses
from podwire.embedded.apiserver.conversionwebhooks import ConversionWebhooks
from podwire.embedded.apiserver.convertedwatch import ConvertedWatch
from podwire.embedded.apiserver.customresources import CustomResources
from podwire.embedded.apiserver.dial import ServiceDialer
from podwire.embedded.apiserver.discovery import DiscoveryDocuments
from podwire.embedded.apiserver.documents import OpenApi
from podwire.embedded.apiserver.flowobjects import FlowObjects
from podwire.embedded.apiserver.garbage import Garbage
from podwire.embedded.apiserver.issuerdiscovery import IssuerDiscovery
from podwire.embedded.apiserver.journal import Journal
from podwire.embedded.apiserver.kinds import KINDS
from podwire.embedded.apiserver.monitoring import Metrics, ReadinessChecks, render_index, render_version
from podwire.embedded.apiserver.namespaces import Namespaces
from podwire.embedded.apiserver.reads import ObjectReader
from podwire.embedded.apiserver.resourcemetrics import ResourceMetrics
from podwire.embedded.apiserver.rest import Api, Collaborators
from podwire.embedded.apiserver.schema import data
from podwire.embedded.apiserver.semantics import Semantics
from podwire.embedded.apiserver.serviceips import ServiceAddresses
from podwire.embedded.apiserver.serviceranges import ServiceRanges
from podwire.embedded.apiserver.settings import ApiServerSettings, load
from podwire.embedded.apiserver.store import Store
from podwire.embedded.apiserver.subresources import Subresources
from podwire.embedded.apiserver.tunnel import Tunnel
from podwire.embedded.apiserver.watches import Watcher
from podwire.embedded.apiserver.writes import Writer
from podwire.errors import ClusterError, ConfigError, PodwireError
from podwire.http.answer import Handler, Result
from podwire.http.server import HttpServer
from podwire.http.tls import server_context
from podwire.observe.log import Level, Log, configure
from podwire.runtime.clock import Clock, SystemClock, parse_rfc3339
from podwire.runtime.tasks import TaskSet

_EXPIRY_S = 60.0


class ApiServer:
    """One API server in this event loop."""

    def __init__(self, settings: ApiServerSettings, clock: Clock) -> None:
        """Opens the state and wires the components.

        Raises: ClusterError when the state cannot be used, ConfigError for a wrong or missing file.
        """
        self._settings = settings
        self._clock = clock
        self._log = Log("apiserver")
        self._tasks = TaskSet(lambda name, failure: self._log.error("task failed", failure=failure, task=name))
        try:
            for path in (settings.certificate, settings.key, settings.client_ca):
                path.read_bytes()
            signing_key = settings.signing_key.read_bytes()
            self._tls = server_context(str(settings.certificate), str(settings.key), str(settings.client_ca))
            self._tunnel = Tunnel(settings, self._tasks)
        except OSError as failure:
            raise ConfigError("apiserver", "", f"certificates and keys: {failure}") from failure
        self.kinds = dict(KINDS)
        self.store = Store(Journal(settings.state))
        self._tunnel.store = self.store
        custom = CustomResources(self.store, self.kinds, clock)
        custom.start()
        self._semantics = Semantics(settings, self.store, custom)
        tokens = ServiceAccountTokens(signing_key, settings.issuer, clock, self.store)
        reader = ObjectReader(self.store, self._semantics, clock, snapshot_s=settings.list_snapshot_s)
        self.authorizer = Authorizer(self.store)
        dialer = ServiceDialer(self.store, self._tunnel)
        conversions = ConversionWebhooks(WebhookClient(dialer), custom.webhook_of, custom.pruned)
        admission = self._admission(dialer, conversions)
        self.writer = Writer(self.store, self._semantics, admission, conversions, clock)
        self._watcher = self._make_watcher(reader, conversions, custom)
        layer = self._layer = AggregationLayer(settings, self.store, dialer, self._tasks)
        issuer = IssuerDiscovery(tokens)
        pages = {
            **self._make_pages(custom, layer), ".well-known": issuer.answer, "openid": issuer.answer,
        }  # fmt: skip
        authenticator = Authenticator(tokens, (settings.issuer, "https://kubernetes.default.svc", "api"))
        self.api = Api(
            Collaborators(
                self.store, self.kinds, reader, self.writer, self._watcher, authenticator, self.authorizer,
                Subresources(self.store, self.writer, tokens, custom, clock), self._tunnel.carry,
                layer.extensions, layer.client.carry, pages, self._computed(reader),
            )
        )  # fmt: skip
        self._semantics.start()
        self.authorizer.start()
        bootstrap.DefaultAccounts(self.store, self.writer).start()
        self._start_collectors()
        PolicyTypeChecker(self.store, self.writer, self.kinds, self._semantics.schema).start()
        self._audit = self._make_audit(authenticator)
        self._http = HttpServer(self._audit.handle if self._audit else self.api.handle, self._tasks, clock)
        self._http.render_error = failures.render_refusal
        self._started = False

    def _make_audit(self, authenticator: Authenticator) -> AuditLog | None:
        if self._settings.audit is None:
            return None
        return AuditLog(self._settings.audit, authenticator.user, self.api.handle, self._clock)

    def _computed(self, reader: ObjectReader) -> dict[str, Callable[[Call], Result | Awaitable[Result]]]:
        components = ComponentStatuses(reader, self._watcher)
        usage = ResourceMetrics(self.store, reader, self._tunnel, self._clock)
        return {"ComponentStatus": components.answer, "NodeMetrics": usage.nodes, "PodMetrics": usage.pods}

    def _make_pages(self, custom: CustomResources, layer: AggregationLayer) -> dict[str, Handler]:
        """The handlers of what is outside the resources, which follow changes of the kinds."""
        discovery = DiscoveryDocuments(self.kinds, layer.extensions)
        openapi = OpenApi(self.kinds, custom.schemas, layer.extensions)
        custom.on_kinds = (discovery.changed, openapi.changed, layer.kinds_changed)
        layer.follow(discovery.changed, openapi.changed)
        self.health = ReadinessChecks(
            {"ping": lambda: True, "journal": lambda: True, "bootstrap": lambda: self._started}
        )
        return {
            "": render_index, "api": discovery.answer, "apis": discovery.answer, "openapi": openapi.answer,
            "version": render_version, "healthz": self.health.answer, "livez": self.health.answer,
            "readyz": self.health.answer, "metrics": Metrics(self.store, self.kinds).answer,
        }  # fmt: skip

    def _make_watcher(self, reader: ObjectReader, conversions: ConversionWebhooks, custom: CustomResources) -> Watcher:
        watcher = Watcher(self.store, reader, bookmark_s=self._settings.bookmark_s)
        watcher.make_converted = partial(ConvertedWatch, conversions.convert, self._tasks)
        custom.on_conversion = watcher.end
        return watcher

    def _start_collectors(self) -> None:
        """Starts the controllers that delete objects: the garbage collector and the deletion of namespaces."""
        owners = ForeignOwners(self._layer.extensions, self._layer.client, self._tasks)
        Garbage(self.store, self.writer.deletion, self.kinds, owners).start()
        deletion, content = self.writer.deletion, self._layer.content
        namespaces = Namespaces(self.store, deletion, self.kinds, self._clock, content, self._tasks)
        namespaces.start()
        self._layer.extensions.on_change.append(namespaces.look_again)

    def _admission(self, dialer: ServiceDialer, conversions: ConversionWebhooks) -> AdmissionChain:
        changed, schema = self._semantics.changed, self._semantics.schema
        return AdmissionChain(
            AdmissionContext(
                self.store, self.kinds, self.authorizer, self._clock, changed, schema, dialer, conversions.into,
                conversions.view,
            )
        )  # fmt: skip

    async def start(self) -> tuple[tuple[str, int], ...]:
        """Fills an empty state and listens; returns the addresses in use.

        Raises: ClusterError when an address is taken.
        """
        bootstrap.fill(self.store, self.writer, self._settings)
        ensure_defaults(self.store, self.writer)
        Aggregation(self.store, self.writer).start()
        ServiceAddresses(self.store, self._clock).start()
        ServiceRanges(self.store, self._clock).start()
        FlowObjects(self.store, self._clock).start()
        self._layer.start(self.writer, self.kinds, self._clock)
        pending = self.store.durable(self.store.version)
        if pending is not None:
            await pending
        addresses = []
        for host, port in self._settings.addresses():
            try:
                addresses.append(await self._http.listen(host, port, self._tls))
            except OSError as failure:
                await self.close()
                raise ClusterError(f"cannot listen on {host}:{port}: {failure.strerror or failure}") from failure
        self._started = True
        self._tasks.start("event expiry", self._expire_events())
        gc.freeze()
        for address in addresses:
            self._log.info("listening", address=f"{address[0]}:{address[1]}")
        return tuple(addresses)

    async def _expire_events(self) -> None:
        """Once a minute deletes events that were not updated for the time in the settings."""
        while True:
            oldest = self._clock.now() - datetime.timedelta(seconds=self._settings.event_ttl_s)
            for entry in self.store.entries("/events"):
                if _last_seen(entry.object()) < oldest:
                    self.store.delete(entry)
            await self._clock.sleep(_EXPIRY_S)

    async def close(self) -> None:
        """Ends watches, closes connections, writes pending changes."""
        self._watcher.close()
        await self._http.close()
        await self._tasks.close()
        self.store.close()
        if self._audit is not None:
            self._audit.close()


def _last_seen(event: dict[str, Any]) -> datetime.datetime:
    """The latest time that an event names."""
    series = event.get("series") or {}
    stamps = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"),
              event["metadata"].get("creationTimestamp"))  # fmt: skip
    times = [datetime.datetime.min.replace(tzinfo=datetime.UTC)]
    for stamp in stamps:
        with contextlib.suppress(ValueError, TypeError):
            times.append(parse_rfc3339(str(stamp)))
    return max(times)


def warm() -> None:
    """Loads the data that every server needs; a process calls this once before it forks servers."""
    data.names()


async def run(settings: ApiServerSettings, clock: Clock | None = None) -> None:
    """Runs a server until it is cancelled or told to stop by SIGTERM or SIGINT.

    Raises: ClusterError or ConfigError when it cannot start.
    """
    server = ApiServer(settings, clock or SystemClock())
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    await server.start()
    try:
        await stopped.wait()
    finally:
        await server.close()


def main(arguments: list[str] | None = None) -> int:
    """Runs a server from the command line; returns the exit status."""
    import argparse

    parser = argparse.ArgumentParser(prog="podwire apiserver", description="The Kubernetes API of a local cluster.")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="settings (YAML)")
    parser.add_argument("--log-level", default="info", choices=get_args(Level), help="From which level on.")
    options = parser.parse_args(arguments)
    configure(options.log_level)
    try:
        asyncio.run(run(load(options.config)))
    except PodwireError as failure:
        sys.stderr.write(f"podwire apiserver: {failure}\n")
        return 2 if isinstance(failure, ConfigError) else 1
    return 0


def render_settings(settings: ApiServerSettings) -> bytes:
    """The settings as a file that :func:`podwire.embedded.apiserver.settings.load` reads (JSON, which is YAML)."""
    return msgspec.json.format(msgspec.json.encode(settings, enc_hook=str), indent=2)


if __name__ == "__main__":
    sys.exit(main())
