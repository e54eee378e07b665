"""What the gateway does with a request, from the objects alone: pure.

The entries are translated as the gateway does it, and the matching rules choose; nothing is asked of an engine.
Ingresses are one way in, and each Gateway is one of its own. Those that have a route for the request are answers; where
none has, all say why.
"""

from urllib.parse import urlsplit

import msgspec

from podwire.errors import ConfigError
from podwire.gateway.api.translate import GatewayApiFacts
from podwire.gateway.ingress.classes import class_of, default_class, served_classes
from podwire.gateway.ingress.translate import IngressFacts, Translation, translate
from podwire.gateway.matching import HttpRequest, RouteDecision, decide
from podwire.model.ingress import Ingress, IngressClass
from podwire.model.meta import key_of
from podwire.why.gateway.entrance import Entrance, entrance
from podwire.why.gateway.gateways import gateway_entrances

_INGRESS_PORTS = {"http": 80, "https": 443}


class UrlAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to a request, at each way in that has a route for it, or at all of them."""

    url: str
    method: str
    entrances: tuple[Entrance, ...]


class UrlQuestion(msgspec.Struct, frozen=True):
    """A URL and a method as typed."""

    url: str
    method: str = "GET"

    @property
    def protocol(self) -> str:
        """HTTP or HTTPS."""
        return urlsplit(self.url).scheme.upper()

    def request(self) -> HttpRequest:
        """The request of a client.

        Raises: ConfigError when the URL has no scheme, host or port that the gateway serves.
        """
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("URL", "", f"{self.url!r} has no scheme and host; expected http://HOST/PATH or https://")
        try:
            port = parts.port or _INGRESS_PORTS[parts.scheme]
        except ValueError as problem:
            raise ConfigError("URL", "", f"{self.url!r}: {problem}") from problem
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return HttpRequest(
            port=port,
            server_name=parts.hostname if parts.scheme == "https" else "",
            host=parts.netloc.rpartition("@")[2],
            method=self.method.upper(),
            path=path,
        )


class UrlFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the answer depends on.

    ``foreign`` are the Ingresses that are not served, with the reason; ``addresses`` those of the Ingresses that are.
    """

    ingresses: IngressFacts
    foreign: tuple[tuple[Ingress, str], ...] = ()
    addresses: tuple[str, ...] = ()
    gateways: GatewayApiFacts | None = None


def explain_url(question: UrlQuestion, facts: UrlFacts) -> UrlAnswer:
    """The answer.

    Raises: ConfigError for a URL that cannot be asked.
    """
    request = question.request()
    known: list[Entrance] = []
    if request.port == _INGRESS_PORTS[question.protocol.lower()]:
        known.append(_ingresses(request, facts))
    if facts.gateways is not None:
        known += gateway_entrances(facts.gateways, request, question.protocol)
    name = urlsplit(question.url).hostname
    named = [entry for entry in known if name in entry.addresses]
    routed = [entry for entry in named or known if entry.routed]
    return UrlAnswer(url=question.url, method=request.method, entrances=tuple(routed or named or known))


def _ingresses(request: HttpRequest, facts: UrlFacts) -> Entrance:
    translation = translate(facts.ingresses)
    decision = decide(translation.entry, request)
    problems = (*_problems(decision, translation), *_near(decision, request, facts.foreign))
    return entrance("Ingresses", facts.addresses, decision, translation.entry, problems=problems)


def unserved(
    ingresses: tuple[Ingress, ...], classes: tuple[IngressClass, ...], controller: str
) -> tuple[tuple[Ingress, str], ...]:
    """The Ingresses that a controller leaves alone, each with the reason."""
    ours, default = served_classes(classes, controller), default_class(classes)
    known = {entry.metadata.name: entry.spec.controller for entry in classes}
    result = []
    for ingress in ingresses:
        name = class_of(ingress, default)
        if name in ours:
            continue
        if not name:
            result.append((ingress, "it names no class, and no class is the default"))
        elif name not in known:
            result.append((ingress, f"its class {name!r} does not exist"))
        else:
            result.append((ingress, f"its class {name!r} belongs to the controller {known[name]}"))
    return tuple(result)


def _problems(decision: RouteDecision, translation: Translation) -> list[str]:
    """What is not served as the Ingress of the route asks."""
    if decision.route is None:
        return []
    owner = decision.route.source.split()[1]
    return [f"{problem.reason}: {problem.message}" for problem in translation.problems if problem.key == owner]


def _near(decision: RouteDecision, request: HttpRequest, foreign: tuple[tuple[Ingress, str], ...]) -> list[str]:
    """Ingresses with the host of the request that are not served."""
    if decision.route is not None:
        return []
    host = request.host.partition(":")[0].lower()
    return [
        f"Ingress {key_of(ingress.metadata)} has this host and is not served: {reason}"
        for ingress, reason in foreign
        if any(rule.host.lower() == host for rule in ingress.spec.rules)
    ]
