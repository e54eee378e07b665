"""The objects that all pods of one node share: sandbox host, API client, clock, events and background tasks."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from podwire.embedded.kubelet.config import KubeletConfig
from podwire.embedded.kubelet.ledger import NodeLedger
from podwire.embedded.kubelet.objects import ConfigObjects
from podwire.embedded.kubelet.resolver import Resolver
from podwire.embedded.kubelet.sandbox import SandboxHost
from podwire.kube.client import Client
from podwire.kube.events import EventRecorder, Severity
from podwire.kube.informer import Informer
from podwire.model.meta import ObjectReference
from podwire.model.service import Service
from podwire.runtime.clock import Clock
from podwire.runtime.tasks import TaskSet

_HOLD_S = 1.0


class NodeContext(msgspec.Struct, frozen=True):
    """Shared by every pod worker; nothing in it belongs to one pod."""

    config: KubeletConfig
    host: SandboxHost
    client: Client
    clock: Clock
    tasks: TaskSet
    events: EventRecorder
    objects: ConfigObjects
    services: Informer[Service]
    node_resolver: Resolver
    node_hosts: str
    allocatable: Mapping[str, str]
    ledger: NodeLedger

    def start_task(self, name: str, body: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        """Starts ``body(*arguments)`` in the background."""
        self.tasks.start(name, body(*arguments))

    def record_event(self, subject: ObjectReference, severity: Severity, reason: str, message: str) -> None:
        """Records an Event; a Normal event one second later, so that it does not delay the start of pods."""
        if severity == "Normal":
            loop = asyncio.get_running_loop()
            loop.call_later(_HOLD_S, self.events.event, subject, severity, reason, message)
        else:
            self.events.event(subject, severity, reason, message)
