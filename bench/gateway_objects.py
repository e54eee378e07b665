"""A host that is new among many, from its object to the first answer: an Ingress, and an HTTPRoute of Gateway API.

The controllers of the gateway follow an API that lists the objects and sends the new one; a real Envoy serves what they
translate. Each object has a host and a Service of its own.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.gateway_peers import answer, is_from
from tests.fakes import scripted_http as http
from tests.fakes.ports import free_port
from tests.kernel.changing_api import ChangingApi, meta
from tests.kernel.gateway_engine import Engine, certificate_for

from podwire.cluster.names import GATEWAY_OF_SERVICE, GATEWAY_SERVICE
from podwire.gateway.api import controller as gateway_api
from podwire.gateway.api.services import service_name
from podwire.gateway.engines import EngineFeed
from podwire.gateway.ingress import controller as ingress
from podwire.gateway.ingress.translate import IngressPorts
from podwire.kube.client import Client
from podwire.kube.config import ApiConfig
from podwire.kube.controller import Controller, Environment
from podwire.runtime.clock import SystemClock

Json = dict[str, Any]
_GATEWAY = "shop/front"
_GATEWAY_PORT = 19873
"""One of the ports that engines have for Gateways."""
_LONGEST_S = 3600
"""All objects together; each has a time-out of its own, and on a busy machine many take longer than that together."""


def _name(number: int) -> str:
    return f"host-{number}"


def _host(number: int) -> str:
    return f"{_name(number)}.example"


def _ingress(number: int) -> Json:
    backend = {"service": {"name": _name(number), "port": {"number": 80}}}
    paths = [{"path": "/", "pathType": "Prefix", "backend": backend}]
    rule = {"host": _host(number), "http": {"paths": paths}}
    return {"metadata": meta(_name(number)), "spec": {"ingressClassName": "podwire", "rules": [rule]}}


def _route(number: int) -> Json:
    rule = {"backendRefs": [{"name": _name(number), "port": 80}]}
    spec = {"parentRefs": [{"name": "front"}], "hostnames": [_host(number)], "rules": [rule]}
    return {"metadata": meta(_name(number)), "spec": spec}


def _shared(port: int, engine_port: int, hosts: int) -> dict[str, list[Json]]:
    """Services with their endpoints, the classes, and a Gateway with the Service of its port."""
    services: list[Json] = []
    slices: list[Json] = []
    for number in range(hosts):
        services.append({"metadata": meta(_name(number)), "spec": {"ports": [{"name": "http", "port": 80}]}})
        labels = {"kubernetes.io/service-name": _name(number)}
        slices.append(
            {
                "metadata": meta(f"{_name(number)}-1", labels=labels),
                "addressType": "IPv4",
                "endpoints": [{"addresses": ["127.0.0.1"]}],
                "ports": [{"name": "http", "port": port}],
            }
        )
    labels, owner = {GATEWAY_SERVICE: "true"}, {GATEWAY_OF_SERVICE: _GATEWAY}
    of_gateway = meta(service_name(_GATEWAY), "kube-system", labels=labels, annotations=owner)
    services.append({"metadata": of_gateway, "spec": {"ports": [{"port": 80, "targetPort": engine_port}]}})
    listeners = [{"name": "http", "port": 80, "protocol": "HTTP"}]
    return {
        "services": services,
        "endpointslices": slices,
        "ingressclasses": [{"metadata": meta("podwire", ""), "spec": {"controller": "podwire.io/ingress"}}],
        "gatewayclasses": [{"metadata": meta("podwire", ""), "spec": {"controllerName": "podwire.io/gateway"}}],
        "gateways": [{"metadata": meta("front"), "spec": {"gatewayClassName": "podwire", "listeners": listeners}}],
    }


@asynccontextmanager
async def _serving(engine: Engine, api: ChangingApi, ports: IngressPorts) -> AsyncIterator[None]:
    async with http.ScriptedServer(api.answer) as server:
        client = Client(ApiConfig(f"http://127.0.0.1:{server.port}"), SystemClock())
        environment = Environment(client, "gateway")
        feed = EngineFeed(engine.discovery, {}, (ingress.PART, gateway_api.PART))
        options = ingress.IngressOptions(
            controller="podwire.io/ingress",
            ports=ports,
            default_certificate=certificate_for("default", ("default.invalid",)),
        )
        of_ingresses = ingress.IngressController(environment, options, engine.settings, feed)
        of_gateways = gateway_api.GatewayApiController(
            environment, "podwire.io/gateway", "kube-system", engine.settings, feed
        )

        def answered() -> None:
            of_ingresses.answered()
            of_gateways.answered()

        engine.discovery.on_answer = answered
        parts: dict[str, Controller] = {ingress.PART: of_ingresses, gateway_api.PART: of_gateways}
        task = asyncio.create_task(environment.run(parts))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            engine.discovery.on_answer = lambda: None
            api.close()
            await client.close()


async def _until_answered(engine: Engine, port: int, host: str) -> None:
    """Asks until the answer is that of a host.

    Raises: TimeoutError after two minutes, with what the engine said last.
    """
    status, body, deadline = 0, b"", time.monotonic() + 120
    while time.monotonic() < deadline:
        status, body = await asyncio.to_thread(answer, port, host)
        if status == 200 and is_from(body, host):
            return
        await asyncio.sleep(0.001)
    state = f"engines follow: {engine.discovery.in_step}, refusals: {engine.refusals[-3:]}"
    raise TimeoutError(f"port {port} does not answer for {host}, the last answer was {status} {body!r}; {state}")


async def _measure(engine: Engine, port: int, hosts: int, runs: int) -> dict[str, list[float]]:
    """Milliseconds of each new object, by its kind."""
    ports, gateway_port = IngressPorts(free_port(), free_port()), _GATEWAY_PORT
    listed = _shared(port, gateway_port, hosts + runs)
    listed |= {"ingresses": [_ingress(n) for n in range(hosts)], "httproutes": [_route(n) for n in range(hosts)]}
    api = ChangingApi(listed)
    kinds = (("Ingress", "ingresses", _ingress, ports.http), ("HTTPRoute", "httproutes", _route, gateway_port))
    times: dict[str, list[float]] = {kind: [] for kind, *_ in kinds}

    async with _serving(engine, api, ports):
        for _, _, _, asked in kinds:
            await _until_answered(engine, asked, _host(hosts - 1))
        for number in range(hosts, hosts + runs):
            for kind, plural, make, asked in kinds:
                begun = time.perf_counter()
                api.write(plural, make(number))
                await _until_answered(engine, asked, _host(number))
                times[kind].append((time.perf_counter() - begun) * 1000)
                await asyncio.sleep(0.1)
    return times


def new_objects(engine: Engine, port: int, hosts: int, runs: int) -> dict[str, list[float]]:
    """From an object with a new host, among so many hosts, to the first answer: milliseconds by kind of object."""
    return engine.run(_measure(engine, port, hosts, runs), _LONGEST_S)
