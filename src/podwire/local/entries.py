"""What the fork server of a local cluster runs: an entry for each component, and what each imports beforehand.

Every component could be run by hand with its file: ``podwire agent --config FILE``. The components are imported in the
functions here: the fork server imports the API server, which everything waits for, and then the others while the API
server begins. ``podwire up`` and the supervisor need none of them.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from podwire.kube.decode import prepare
from podwire.kube.resources import (
    CLUSTERNETWORKPOLICIES,
    ENDPOINTSLICES,
    NAMESPACES,
    NETWORKPOLICIES,
    NODES,
    PODS,
    SERVICES,
)
from podwire.observe import log
from podwire.runtime.clock import SystemClock
from podwire.runtime.foreground import run_until_signal
from podwire.runtime.forkserver import Entry, Preparation
from podwire.runtime.registry import Registry


def run_apiserver(payload: bytes) -> None:
    """The API server; ``payload`` is the path of its settings."""
    from podwire.embedded.apiserver import server, settings

    log.configure()
    loaded = settings.load(Path(payload.decode()))
    run_until_signal(lambda: server.run(loaded))


def run_controller(payload: bytes) -> None:
    """Controllers, scheduler and workloads; ``payload`` is the path of their file."""
    from podwire.local import controllers

    controllers.run_file(payload.decode(), None)


def run_agent(payload: bytes) -> None:
    """A node's agent; ``payload`` is the path of its configuration."""
    from podwire.agent import daemon
    from podwire.agent.config import load

    config = load(Path(payload.decode()))
    log.configure(config.log_level)
    run_until_signal(lambda: daemon.run(config, SystemClock()))


def run_kubelet(payload: bytes) -> None:
    """A node's kubelet; ``payload`` is the path of its configuration."""
    from podwire.embedded.kubelet import daemon

    daemon.main(payload.decode())


ENTRIES: Mapping[str, Entry] = {
    "apiserver": run_apiserver,
    "controller": run_controller,
    "agent": run_agent,
    "kubelet": run_kubelet,
}
"""What the fork server can start."""


def _prepare_apiserver() -> Iterator[None]:
    from podwire.embedded.apiserver import server

    server.warm()
    yield


def _prepare_controller() -> Iterator[None]:
    from podwire.local.controllers import CONTROLLERS

    yield from _loaded(CONTROLLERS)


def _prepare_agent() -> Iterator[None]:
    from podwire.policy.registry import DATAPLANES as POLICY_DATAPLANES
    from podwire.proxy.registry import DATAPLANES
    from podwire.routing.registry import BACKENDS

    for module in _AGENT:
        import_module(module)
        yield
    for registry in (POLICY_DATAPLANES, DATAPLANES, BACKENDS):
        yield from _loaded(registry)
    prepare(NODES, PODS, NAMESPACES, SERVICES, ENDPOINTSLICES, NETWORKPOLICIES, CLUSTERNETWORKPOLICIES)


def _prepare_kubelet() -> Iterator[None]:
    import_module("podwire.embedded.kubelet.daemon")
    yield


def _loaded(registry: Registry[Any]) -> Iterator[None]:
    for name in registry:
        registry.load(name)
        yield


_AGENT = (
    "podwire.agent.daemon",
    "podwire.agent.pods",
    "podwire.agent.routes",
    "podwire.agent.policies",
    "podwire.agent.services",
    "encodings.idna",  # with which Python reads the name of every server that it connects to by TLS
)
"""What every node imports, at once or after it has begun."""

PREPARE: Mapping[str, Preparation] = {
    "apiserver": _prepare_apiserver,
    "controller": _prepare_controller,
    "agent": _prepare_agent,
    "kubelet": _prepare_kubelet,
}
"""What the fork server imports for each component, in the order of need."""
