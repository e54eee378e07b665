"""What the gateway does with a request, from the objects alone: pure.

The entry is translated as the gateway does it, and the matching rules choose; nothing is asked of an engine.
"""

from urllib.parse import urlsplit

import msgspec

from podwire.errors import ConfigError
from podwire.gateway.ingress.classes import class_of, default_class, served_classes
from podwire.gateway.ingress.translate import IngressFacts, Translation, translate
from podwire.gateway.matching import HttpRequest, RouteDecision, decide
from podwire.gateway.routes import FixedAnswer, Forward, GatewayEntry, HttpRedirect, RequestMatch, RouteLimits
from podwire.model.ingress import Ingress, IngressClass
from podwire.model.meta import key_of
from podwire.model.wording import count


class UrlBackend(msgspec.Struct, frozen=True):
    """A backend of the route, its share of the requests in percent, and its endpoints."""

    key: str
    share: float
    endpoints: tuple[str, ...] = ()
    problem: str = ""


class UrlAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a request; ``outcome`` is one sentence, ``steps`` are the choices that lead to it."""

    url: str
    method: str
    outcome: str
    steps: tuple[str, ...]
    backends: tuple[UrlBackend, ...] = ()
    problems: tuple[str, ...] = ()


class UrlQuestion(msgspec.Struct, frozen=True):
    """A URL and a method as typed."""

    url: str
    method: str = "GET"

    def request(self) -> HttpRequest:
        """The request of a client.

        Raises: ConfigError when the URL has no scheme or host that the gateway serves.
        """
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("URL", "", f"{self.url!r} has no scheme and host; expected http://HOST/PATH or https://")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        is_tls = parts.scheme == "https"
        return HttpRequest(
            port=443 if is_tls else 80,
            server_name=parts.hostname if is_tls else "",
            host=parts.netloc.rpartition("@")[2],
            method=self.method.upper(),
            path=path,
        )


def explain_url(question: UrlQuestion, facts: IngressFacts, foreign: tuple[tuple[Ingress, str], ...] = ()) -> UrlAnswer:
    """The answer; ``foreign`` are the Ingresses that are not served, with the reason.

    Raises: ConfigError for a URL that cannot be asked.
    """
    request = question.request()
    translation = translate(facts)
    decision = decide(translation.entry, request)
    outcome, backends = _outcome(decision, translation.entry)
    return UrlAnswer(
        url=question.url,
        method=request.method,
        outcome=outcome,
        steps=tuple(_steps(decision, request)),
        backends=backends,
        problems=(*_problems(decision, translation), *_near(decision, request, foreign)),
    )


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


def _steps(decision: RouteDecision, request: HttpRequest) -> list[str]:
    steps = []
    if decision.listener is not None:
        steps.append(f"listener {decision.listener.name}: {decision.listener.protocol} on port {request.port}")
    if decision.server is not None:
        names = ", ".join(decision.server.names) or "all other names"
        steps.append(f"certificate {', '.join(decision.server.certificates)}, for {names}")
    if decision.host is not None:
        steps.append(
            f"host {', '.join(decision.host.hosts)}: {count(len(decision.host.routes), 'route')}, in this order"
        )
        for route in decision.host.routes:
            chosen = route is decision.route
            steps.append(f"  {'takes' if chosen else 'passes by'} {_match_text(route.match)}: {route.source}")
            if chosen:
                break
    if decision.route is not None:
        steps += [f"  checks {text}" for text in _limit_texts(decision.route.limits)]
    return steps


def _match_text(match: RequestMatch) -> str:
    kinds = {"exact": "path", "prefix": "paths below", "regex": "paths like"}
    text = f"{kinds[match.path.kind]} {match.path.path}"
    text += f", method {match.method}" if match.method else ""
    for header in match.headers:
        text += f", header {header.name}" + (f" = {header.value}" if header.value else "")
    return text


def _limit_texts(limits: RouteLimits) -> list[str]:
    texts = [f"the client's address: not in {', '.join(limits.deny)}"] if limits.deny else []
    texts += [f"the client's address: in {', '.join(limits.allow)}"] if limits.allow else []
    texts += ["user and password"] if limits.basic_auth is not None else []
    texts += [f"the body: at most {limits.body_bytes} bytes"] if limits.body_bytes else []
    if limits.rate is not None:
        texts.append(f"the rate: {limits.rate.requests} requests in {limits.rate.interval:g} s")
    return texts


def _outcome(decision: RouteDecision, entry: GatewayEntry) -> tuple[str, tuple[UrlBackend, ...]]:
    if decision.route is None:
        return f"answered with {decision.status or 404}: {_no_route(decision)}", ()
    action = decision.route.action
    if isinstance(action, FixedAnswer):
        return f"answered with {action.status}", ()
    if isinstance(action, HttpRedirect):
        target = action.location or f"{action.scheme or 'the same scheme'}, {action.host or 'the same host'}"
        return f"redirected with {action.status} to {target}", ()
    backends = _backends(action, entry)
    if not any(backend.endpoints for backend in backends):
        return "answered with 503: no backend has an endpoint", backends
    return "forwarded to a pod", backends


def _no_route(decision: RouteDecision) -> str:
    if decision.host is None:
        return "no Ingress has this host"
    return "no route of this host matches the path"


def _backends(action: Forward, entry: GatewayEntry) -> tuple[UrlBackend, ...]:
    total = sum(share.weight for share in action.backends) or 1
    result = []
    for share in action.backends:
        backend = entry.backends.get(share.key)
        endpoints = tuple(f"{known.address}:{known.port}" for known in backend.endpoints) if backend is not None else ()
        problem = "" if endpoints else "no endpoint is ready"
        problem = problem if backend is not None else "does not exist"
        result.append(UrlBackend(share.key, round(100 * share.weight / total, 1), endpoints, problem))
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
