"""The entries of a local cluster's fork server: a function for each component, and the imports of each component.

Each component can also be run by hand with its file: ``podwire agent --config FILE``. The functions here import the
components, so ``podwire up`` and the supervisor do not load them. The fork server imports the API server first, because
all other components wait for it, and then the others while the API server starts.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from podwire.kube.decode import prepare
from podwire.kube.resources import (
    BFDPROFILES,
    BGPADVERTISEMENTS,
    CLUSTERNETWORKPOLICIES,
    EGRESSPOLICIES,
    ENDPOINTSLICES,
    IPADDRESSPOOLS,
    L2ADVERTISEMENTS,
    LEASES,
    METALLB_COMMUNITIES,
    METALLB_PEERS,
    NAMESPACES,
    NETWORKPOLICIES,
    NODES,
    PODS,
    SERVICES,
    Resource,
)
from podwire.local.builds import BUILD_ENTRY, BuildOrder
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


def run_bird(payload: bytes) -> None:
    """BIRD on the router of the fabric; ``payload`` is the path of its configuration."""
    from podwire.local.fabric.bird import command

    argv = command(payload.decode())
    os.execv(argv[0], argv)


def run_frr(payload: bytes) -> None:
    """A process of FRR on the router of the fabric; ``payload`` is the path of its configuration."""
    from podwire.local.fabric.frrprocess import start

    start(payload.decode())


def run_build(payload: bytes) -> None:
    """A component of another build; ``payload`` is the order (:class:`~podwire.local.components.BuildOrder`)."""
    order = msgspec.json.decode(payload, type=BuildOrder)
    program = f"from podwire.local.entries import ENTRIES; ENTRIES[{order.entry!r}]({order.path.encode()!r})"
    os.execve(sys.executable, [sys.executable, "-c", program], order.build.environment)


ENTRIES: Mapping[str, Entry] = {
    "apiserver": run_apiserver,
    "controller": run_controller,
    "agent": run_agent,
    "kubelet": run_kubelet,
    "bird": run_bird,
    "frr": run_frr,
    BUILD_ENTRY: run_build,
}
"""The entries of the fork server, by component."""


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
    for resource in _FOLLOWED:
        prepare(resource)
        yield
    from podwire.agent.config import parse

    parse("nodeName: node", "defaults")  # builds the types of the sections


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
    "podwire.agent.balancers",
    "concurrent.futures.thread",
    "encodings.idna",  # with which Python reads the name of every server that it connects to by TLS
)
"""Modules that every node imports, at its start or later."""

_FOLLOWED: tuple[Resource[Any], ...] = (
    NODES,
    PODS,
    NAMESPACES,
    SERVICES,
    ENDPOINTSLICES,
    NETWORKPOLICIES,
    CLUSTERNETWORKPOLICIES,
    EGRESSPOLICIES,
    LEASES,
    IPADDRESSPOOLS,
    L2ADVERTISEMENTS,
    BGPADVERTISEMENTS,
    METALLB_PEERS,
    METALLB_COMMUNITIES,
    BFDPROFILES,
)
"""What every agent follows: the decoder of a kind takes 0.5 ms to build."""

PREPARE: Mapping[str, Preparation] = {
    "apiserver": _prepare_apiserver,
    "controller": _prepare_controller,
    "agent": _prepare_agent,
    "kubelet": _prepare_kubelet,
}
"""The imports of the fork server for each component, in the order in which components start."""
