"""The paths of every host, merged from all Ingresses, and who wins where two ask for the same.

Ingresses come oldest first. A host's paths are those of all Ingresses that name it; of two with the same path and type
the older one is served and the newer one is reported. An alias of a host is served like the host unless an Ingress has
it as a host. A path that the engine cannot read is reported, and everything else is served.
"""

from collections.abc import Iterable, Mapping
from itertools import chain

import msgspec

from podwire.gateway.ingress.annotations import AnnotationProblem, IngressSettings, read_annotations
from podwire.gateway.lookups import identical
from podwire.gateway.patterns import pattern_problem
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

    @property
    def asks_for_patterns(self) -> bool:
        """Whether its Ingress makes all paths of the host regular expressions."""
        return self.settings.use_regex or bool(self.settings.rewrite_target)


class ReadIngress(msgspec.Struct, frozen=True, kw_only=True):
    """An Ingress with its settings, the annotations that are not honoured, and its paths by host."""

    ingress: Ingress
    settings: IngressSettings
    problems: tuple[AnnotationProblem, ...]
    paths: list[tuple[str, ServedPath]]


class HostPaths(msgspec.Struct, frozen=True, kw_only=True):
    """What Ingresses ask for at a host, oldest first; what is served of it in order of precedence, and what is not.

    ``touches_others`` says that an annotation may concern more than the routes of the host: its names or its TLS.
    """

    asked: list[ServedPath]
    served: list[ServedPath]
    problems: tuple[IngressProblem, ...]
    touches_others: bool


def read_ingress(ingress: Ingress) -> ReadIngress:
    """The annotations and paths of an Ingress."""
    settings, problems = read_annotations(ingress.metadata.annotations)
    return ReadIngress(ingress=ingress, settings=settings, problems=problems, paths=_paths(ingress, settings))


def paths_of_hosts(
    entries: Iterable[list[tuple[str, ServedPath]]], known: Mapping[str, HostPaths]
) -> dict[str, HostPaths]:
    """The paths of each host; ``entries`` are those of Ingresses. A host with the same paths as before is ``known``."""
    asked: dict[str, list[ServedPath]] = {}
    for host, path in chain.from_iterable(entries):
        asked.setdefault(host, []).append(path)
    hosts: dict[str, HostPaths] = {}
    for host, paths in asked.items():
        before = known.get(host)
        hosts[host] = before if before is not None and identical(before.asked, paths) else _host_paths(host, paths)
    return hosts


def _host_paths(host: str, asked: list[ServedPath]) -> HostPaths:
    winners: dict[tuple[str, str, bool], ServedPath] = {}
    problems: list[IngressProblem] = []
    for path in asked:
        winner = winners.setdefault((path.path, path.path_type, path.catch_all), path)
        if winner is not path and (winner.ingress is not path.ingress or not path.catch_all):
            problems.append(_lost(host, path, winner))
    paths = sorted(winners.values(), key=_precedence)
    unreadable = list(_unreadable(paths))
    served = [path for path in paths if all(path is not entry for entry, _ in unreadable)]
    return HostPaths(
        asked=asked,
        served=served,
        problems=(*problems, *(problem for _, problem in unreadable)),
        touches_others=any(_touches_others(path.settings) for path in served),
    )


def _touches_others(settings: IngressSettings) -> bool:
    return bool(
        settings.server_alias or settings.from_to_www_redirect or settings.auth_tls_secret or settings.ssl_passthrough
    )


def path_pattern(path: str) -> str:
    """The regular expression of a path on a host that has them: open at its end, whatever the case."""
    return f"{path}.*"


def _unreadable(paths: list[ServedPath]) -> Iterable[tuple[ServedPath, IngressProblem]]:
    """The paths of a host that the engine would refuse, and with them every later change of the table."""
    patterns = any(path.asks_for_patterns for path in paths)
    for path in paths:
        if path.catch_all:
            continue
        expected = problem = ""
        if patterns:
            expected = "a regular expression of RE2, since an Ingress of this host has use-regex or rewrite-target"
            problem = pattern_problem(f"(?i){path_pattern(path.path)}")
        elif "?" in path.path or "#" in path.path:
            expected, problem = "a path without ? and #", "requests are compared without their query"
        if problem:
            field = path.source.partition(" spec.")[2]
            text = f"spec.{field}.path: expected {expected}, got {path.path!r}: {problem}; the path is not served"
            yield path, IngressProblem(key=key_of(path.ingress.metadata), reason="InvalidPath", message=text)


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
