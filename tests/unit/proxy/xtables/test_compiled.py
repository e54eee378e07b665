"""Compiled Services, and which Service owns which frontend."""

from podwire.proxy.frontends import Frontend
from podwire.proxy.servicemap import ResolvedPort
from podwire.proxy.xtables.compiled import CompiledServices, Ports

Made = tuple[str, ...]


def port(service: str, *external: str) -> ResolvedPort:
    return ResolvedPort(
        service=service, port_name="", protocol="tcp", family="ip", port=80, cluster_ip=f"ip of {service}",
        external_ips=external,
    )  # fmt: skip


def owned(_ports: Ports, frontends: frozenset[Frontend]) -> Made:
    return tuple(sorted(way.address for way in frontends))


def test_waiting_service_is_recompiled_when_its_frontend_is_released() -> None:
    services: CompiledServices[Made] = CompiledServices(owned, ())
    assert list(services.change({"a": (port("a", "x"),), "b": (port("b", "x"),)})) == [
        ((), ("ip of a", "x")),
        ((), ("ip of b",)),
    ]
    assert services.claims.waiting() == ("b",)
    assert list(services.change({"a": ()})) == [(("ip of a", "x"), ()), (("ip of b",), ("ip of b", "x"))]
    assert not services.claims.waiting()


def test_repeated_new_service_is_reported_once() -> None:
    services: CompiledServices[Made] = CompiledServices(owned, ())
    list(services.change({"a": (port("a", "x"),), "b": (port("b", "x"),)}))
    changed = {"a": (port("a"),), "b": (port("b", "x", "y"),)}
    assert list(services.change(changed)) == [(("ip of a", "x"), ("ip of a",)), (("ip of b",), ("ip of b", "x", "y"))]
    assert list(services.change({"gone": ()})) == [((), ())]
