"""Objects of a cluster, read over one connection that stays open.

Tests wait for objects by reading them again and again. As processes of kubectl these reads would be most of what the
end-to-end tests need; the verbs of kubectl themselves have tests of their own.
"""

from collections.abc import Iterator
from functools import cache
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import urlencode

from tests.e2e.connection import Connection

_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


class Resource(NamedTuple):
    """The path of a kind's objects: its version, its plural, and the fields that lists leave out."""

    version_path: str
    plural: str
    namespaced: bool
    api_version: str
    kind: str


class Query(NamedTuple):
    """The arguments of ``kubectl get`` that tests use."""

    kinds: tuple[str, ...]
    names: tuple[str, ...]
    namespace: str | None
    """None: all namespaces."""
    selectors: dict[str, str]


class Reader:
    """Reads objects over a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._resources: dict[str, Resource] = {}
        self._kinds: dict[tuple[str, str], Resource] = {}

    def get(self, arguments: tuple[str, ...]) -> Any:
        """The output of ``kubectl get WORDS -o json``, decoded.

        Raises: AssertionError when the API refuses.
        """
        query = parse(arguments)
        results = [item for kind in query.kinds for item in self._read(self._resource(kind), query)]
        if len(query.names) == 1 and len(query.kinds) == 1:
            return results[0]
        return {"apiVersion": "v1", "kind": "List", "items": results}

    def _read(self, resource: Resource, query: Query) -> Iterator[Any]:
        path = resource.version_path
        if resource.namespaced and query.namespace is not None:
            path += f"/namespaces/{query.namespace}"
        path += f"/{resource.plural}"
        for name in query.names:
            yield self._ask(f"{path}/{name}")
        if not query.names:
            listed = self._ask(f"{path}?{urlencode(query.selectors)}")
            for item in listed["items"]:
                yield {"apiVersion": resource.api_version, "kind": resource.kind, **item}

    def path_of(self, body: Any, namespace: str) -> str:
        """The path of the list that an object belongs to; the namespace is for one that names none itself."""
        expected = body["apiVersion"], body["kind"]
        if expected not in self._kinds:
            self._learn()
        assert expected in self._kinds, f"the server has no {expected[1]} in {expected[0]}"
        resource = self._kinds[expected]
        inside = f"/namespaces/{body['metadata'].get('namespace', namespace)}" if resource.namespaced else ""
        return f"{resource.version_path}{inside}/{resource.plural}"

    def _resource(self, word: str) -> Resource:
        if word not in self._resources:
            self._learn()
        assert word in self._resources, f"the server has no resource type {word!r}"
        return self._resources[word]

    def _learn(self) -> None:
        discovered = list(self._discover())
        self._resources = dict(discovered)
        self._kinds = {(resource.api_version, resource.kind): resource for _, resource in discovered}

    def _discover(self) -> Iterator[tuple[str, Resource]]:
        """Resources by all of their names; those of the core group win."""
        for root in ("/apis", "/api"):
            for group in self._ask(root, _DISCOVERY)["items"]:
                name = group["metadata"].get("name", "")
                for version in reversed(group["versions"]):
                    api_version = f"{name}/{version['version']}" if name else version["version"]
                    for item in version["resources"]:
                        resource = Resource(
                            f"{root}/{api_version}",
                            item["resource"],
                            item["scope"] == "Namespaced",
                            api_version,
                            item["responseKind"]["kind"],
                        )
                        for word in (item["resource"], item.get("singularResource"), *item.get("shortNames", ())):
                            yield word, resource

    def _ask(self, path: str, accept: str = "application/json") -> Any:
        answer = self._connection.send("GET", path, accept=accept)
        assert answer.status == HTTPStatus.OK, f"GET {path}: {answer.status} {answer.body}"
        return answer.body


def parse(arguments: tuple[str, ...]) -> Query:
    """Parses the arguments after ``kubectl get``."""
    kinds, names, namespace, selectors = "", [], "default", {}
    everywhere = False
    rest = iter(arguments)
    for word in rest:
        option, equals, value = word.partition("=")
        if word == "-A":
            everywhere = True
        elif option in ("-n", "-l", "--field-selector", "--selector"):
            value = value if equals else next(rest)
            if option == "-n":
                namespace = value
            else:
                selectors["fieldSelector" if option == "--field-selector" else "labelSelector"] = value
        elif not kinds:
            kinds = word
        else:
            names.append(word)
    return Query(tuple(kinds.split(",")), tuple(names), None if everywhere else namespace, selectors)


@cache
def reader_of(connection: Connection) -> Reader:
    """The reader of a connection: discovery is read once."""
    return Reader(connection)
