"""The paths of every host, merged from all Ingresses, and who wins where two ask for the same.

Ingresses come oldest first. A host's paths are those of all Ingresses that name it; of two with the same path and type
the older one is served and the newer one is reported. An alias of a host is served like the host unless an Ingress has
it as a host.
"""

from collections.abc import Iterable

import msgspec

from podwire.gateway.ingress.annotations import IngressSettings
from podwire.model.ingress import Ingress, IngressBackend
from podwire.model.meta import key_of

ANY_HOST = "*"


class IngressProblem(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What is not served as an Ingress asks; becomes an Event of the object."""

    key: str
    reason: str
    message: str


class ServedPath(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One path of a host; ``path_type`` as in the API, ``catch_all`` for a default backend."""

    ingress: Ingress
    settings: IngressSettings
    source: str
    path: str
    path_type: str
    backend: IngressBackend
    catch_all: bool = False


Loaded = tuple[Ingress, IngressSettings]


def paths_of_hosts(loaded: Iterable[Loaded]) -> tuple[dict[str, list[ServedPath]], list[IngressProblem]]:
    """The paths of each host in order of precedence, and the paths that lost."""
    hosts: dict[str, list[ServedPath]] = {}
    problems: list[IngressProblem] = []
    for ingress, settings in loaded:
        for host, path in _paths(ingress, settings):
            winner = next((other for other in hosts.setdefault(host, []) if _same(other, path)), None)
            if winner is None:
                hosts[host].append(path)
            elif winner.ingress is not ingress or not path.catch_all:
                problems.append(_lost(host, path, winner))
    for paths in hosts.values():
        paths.sort(key=_precedence)
    return hosts, problems


def _paths(ingress: Ingress, settings: IngressSettings) -> list[tuple[str, ServedPath]]:
    name = f"Ingress {key_of(ingress.metadata)}"
    entries: list[tuple[str, ServedPath]] = []
    for index, rule in enumerate(ingress.spec.rules):
        for number, entry in enumerate(rule.http.paths if rule.http is not None else ()):
            path = ServedPath(
                ingress=ingress,
                settings=settings,
                source=f"{name} spec.rules[{index}].http.paths[{number}]",
                path=entry.path or "/",
                path_type=entry.path_type,
                backend=entry.backend,
            )
            entries.append((rule.host.lower() or ANY_HOST, path))
    default = ingress.spec.default_backend
    if default is not None:
        hosts = dict.fromkeys(rule.host.lower() or ANY_HOST for rule in ingress.spec.rules) or {ANY_HOST: None}
        path = ServedPath(
            ingress=ingress,
            settings=settings,
            source=f"{name} spec.defaultBackend",
            path="/",
            path_type="Prefix",
            backend=default,
            catch_all=True,
        )
        entries += [(host, path) for host in hosts]
    return entries


def _same(path: ServedPath, other: ServedPath) -> bool:
    return (path.path, path.path_type, path.catch_all) == (other.path, other.path_type, other.catch_all)


def _lost(host: str, path: ServedPath, winner: ServedPath) -> IngressProblem:
    owner = key_of(winner.ingress.metadata)
    return IngressProblem(
        key=key_of(path.ingress.metadata),
        reason="PathConflict",
        message=f"{path.path_type} path {path.path} of host {host} is served by the older Ingress {owner}",
    )


def _precedence(path: ServedPath) -> tuple[bool, bool, int]:
    """Exact paths first, then longer ones before shorter ones, default backends last."""
    return path.catch_all, path.path_type != "Exact", -len(path.path)
