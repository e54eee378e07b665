"""The cases of ``ingress.yaml`` as objects: Ingresses, what they name, and requests with what becomes of them."""

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import yaml

from podwire.gateway.backends import UpstreamFacts
from podwire.gateway.ingress.annotations import PREFIX
from podwire.gateway.ingress.classes import served_ingresses
from podwire.gateway.ingress.settings import read_defaults
from podwire.gateway.ingress.translate import IngressFacts, IngressPorts
from podwire.gateway.routes import Certificate
from podwire.model.ingress import Ingress, IngressClass, IngressClassSpec
from podwire.model.meta import ObjectMeta
from podwire.model.service import Endpoint, EndpointPort, EndpointSlice, Service, ServicePort, ServiceSpec

NAMESPACE = "shop"
_CONTROLLER = "podwire.io/ingress"
_CLASS = "podwire"


class CaseRequest(msgspec.Struct, frozen=True, rename=lambda name: name.replace("_", " ")):
    """A request and its outcome; what is absent is not compared."""

    request: str
    headers: dict[str, str] = {}
    body: int = 0
    repeat: int = 1
    keeps_cookies: bool = False
    not_counted: int = 0
    """How many of the first answers are left out."""
    status: int = 0
    service: str = ""
    location: tuple[str, ...] = ()
    path: str = ""
    host: str = ""
    request_headers: dict[str, str] = {}
    answer_headers: dict[str, str] = {}
    no_answer_headers: tuple[str, ...] = ()
    cookie: tuple[str, ...] = ()
    distinct_endpoints: int = 0
    share: dict[str, tuple[float, float]] = {}
    certificate: str = ""
    default_certificate: bool = False
    some_status: int = 0
    some_status_of: tuple[int, ...] = ()

    @property
    def method(self) -> str:
        """The method."""
        return self.request.partition(" ")[0]

    @property
    def url(self) -> Any:
        """The parts of the URL."""
        return urlsplit(self.request.partition(" ")[2])

    @property
    def target(self) -> str:
        """The path with its query."""
        return str(self.url.path) + (f"?{self.url.query}" if self.url.query else "")

    @property
    def expected_status(self) -> int:
        """The status of the answer, 0 for any."""
        return self.status or (200 if self.service else 0)


class IngressCase(msgspec.Struct, frozen=True, rename=lambda name: name.replace("_", " ")):
    """Ingresses and requests to them."""

    name: str
    ingresses: tuple[dict[str, Any], ...]
    requests: tuple[CaseRequest, ...]
    settings: dict[str, str] = {}
    certificates: dict[str, tuple[str, ...]] = {}
    users: dict[str, dict[str, str]] = {}
    config_maps: dict[str, dict[str, str]] = {}
    without_endpoints: tuple[str, ...] = ()
    endpoints: dict[str, int] = {}


def ingress_cases() -> tuple[IngressCase, ...]:
    """All cases of the file."""
    text = Path(__file__).with_name("ingress.yaml").read_text(encoding="utf-8")
    return msgspec.convert(yaml.load(text, Loader=yaml.CSafeLoader), tuple[IngressCase, ...])


def services_of(case: IngressCase) -> tuple[str, ...]:
    """The names of the Services that exist, in the order in which the Ingresses name them."""
    names: dict[str, None] = {}
    for ingress in case.ingresses:
        for paths in ingress.get("hosts", {}).values():
            names |= dict.fromkeys(paths.values())
        names |= dict.fromkeys([ingress["default"]] if "default" in ingress else [])
    return tuple(name for name in names if name != "does-not-exist")


def facts_of(
    case: IngressCase,
    addresses: Mapping[str, tuple[str, ...]],
    port: int,
    certificates: Mapping[str, Certificate],
    ports: IngressPorts = IngressPorts(),  # noqa: B008 - a frozen value
) -> IngressFacts:
    """What the translation reads; ``addresses`` are the endpoints by Service, ``certificates`` by Secret."""
    services = {f"{NAMESPACE}/{name}": _service(name) for name in addresses}
    slices = {f"{NAMESPACE}/{name}": _slice(known, port) for name, known in addresses.items()}
    classes = (IngressClass(metadata=ObjectMeta(name=_CLASS), spec=IngressClassSpec(controller=_CONTROLLER)),)
    users = {f"{NAMESPACE}/{name}": known for name, known in case.users.items()}

    def certificate(key: str) -> Certificate | str:
        return certificates.get(key.removeprefix(f"{NAMESPACE}/"), f"Secret {key} does not exist")

    return IngressFacts(
        ingresses=served_ingresses([_ingress(entry) for entry in case.ingresses], classes, _CONTROLLER),
        upstreams=UpstreamFacts(services=services, slices=lambda key: (slices[key],)),
        certificate=certificate,
        users=lambda key, _kind: _htpasswd(users[key]) if key in users else None,
        config_map=lambda key: case.config_maps.get(key.removeprefix(f"{NAMESPACE}/")),
        default_certificate=certificates.get("", Certificate(name="default", chain="")),
        defaults=read_defaults(case.settings)[0],
        ports=ports,
    )


def _ingress(entry: dict[str, Any]) -> Ingress:
    hosts = entry.get("hosts", {})
    rules = [
        {"host": "" if host == "*" else host, "http": {"paths": [_path(*item) for item in paths.items()]}}
        for host, paths in hosts.items()
    ]
    spec: dict[str, Any] = {"ingressClassName": entry.get("class", _CLASS), "rules": rules}
    if "default" in entry:
        spec["defaultBackend"] = _backend(entry["default"])
    spec["tls"] = [{"secretName": name, "hosts": names} for name, names in entry.get("tls", {}).items()]
    meta: dict[str, Any] = {"name": entry["name"], "namespace": NAMESPACE}
    meta["annotations"] = {PREFIX + name: text for name, text in entry.get("annotations", {}).items()}
    if "created" in entry:
        meta["creationTimestamp"] = entry["created"]
    return msgspec.convert({"metadata": meta, "spec": spec}, Ingress)


def _path(path: str, service: str) -> dict[str, Any]:
    kind, _, text = path.partition(" ")
    return {"pathType": kind, "path": text, "backend": _backend(service)}


def _backend(service: str) -> dict[str, Any]:
    return {"service": {"name": service, "port": {"number": 8080}}}


def _service(name: str) -> Service:
    port = ServicePort(name="http", port=8080)
    return Service(metadata=ObjectMeta(name=name, namespace=NAMESPACE), spec=ServiceSpec(ports=(port,)))


def _slice(addresses: tuple[str, ...], port: int) -> EndpointSlice:
    endpoints = tuple(Endpoint(addresses=(address,)) for address in addresses)
    return EndpointSlice(ports=(EndpointPort(name="http", port=port),), endpoints=endpoints)


def _htpasswd(users: Mapping[str, str]) -> str:
    return "\n".join(
        f"{user}:{{SHA}}{base64.b64encode(hashlib.sha1(password.encode()).digest()).decode()}"
        for user, password in users.items()
    )
