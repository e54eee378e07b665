"""Objects of a cluster, read over one connection that stays open.

Tests wait for objects by reading them again and again. As a process each of these reads would cost 55 ms of processor
time, most of what the end-to-end tests need; the verbs of kubectl themselves have tests of their own.
"""

import atexit
import base64
import http.client
import json
import ssl
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import yaml

_TIMEOUT_S = 120
_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


class Resource(NamedTuple):
    """Where the objects of a kind are: the path of its version, its plural, and what they leave out of lists."""

    version_path: str
    plural: str
    namespaced: bool
    api_version: str
    kind: str


class Query(NamedTuple):
    """The words of ``kubectl get`` that tests use."""

    kinds: tuple[str, ...]
    names: tuple[str, ...]
    namespace: str | None
    """None: all namespaces."""
    selectors: dict[str, str]


class Reader:
    """Reads objects with the credentials of a kubeconfig."""

    def __init__(self, kubeconfig: str) -> None:
        config = yaml.safe_load(Path(kubeconfig).read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._address = urlsplit(cluster["server"])
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._tls = ssl.create_default_context(cadata=authority)
        with tempfile.NamedTemporaryFile() as pair:
            pair.write(base64.b64decode(user["client-certificate-data"]))
            pair.write(base64.b64decode(user["client-key-data"]))
            pair.flush()
            self._tls.load_cert_chain(pair.name)
        self._connection: http.client.HTTPSConnection | None = None
        self._resources: dict[str, Resource] = {}
        atexit.register(self.close)

    def close(self) -> None:
        """Closes the connection; the next read opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def get(self, words: tuple[str, ...]) -> Any:
        """What ``kubectl get WORDS -o json`` prints, decoded.

        Raises: AssertionError when the API refuses.
        """
        query = parse(words)
        found = [item for kind in query.kinds for item in self._read(self._resource(kind), query)]
        if len(query.names) == 1 and len(query.kinds) == 1:
            return found[0]
        return {"apiVersion": "v1", "kind": "List", "items": found}

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

    def _resource(self, word: str) -> Resource:
        if word not in self._resources:
            self._resources = dict(self._discover())
        assert word in self._resources, f"the server has no resource type {word!r}"
        return self._resources[word]

    def _discover(self) -> Iterator[tuple[str, Resource]]:
        """Resources by all of their names; those of the core group win."""
        for root in ("/apis", "/api"):
            for group in self._ask(root, _DISCOVERY)["items"]:
                name = group["metadata"].get("name", "")
                for version in reversed(group["versions"]):
                    api_version = f"{name}/{version['version']}" if name else version["version"]
                    for each in version["resources"]:
                        resource = Resource(
                            f"{root}/{api_version}",
                            each["resource"],
                            each["scope"] == "Namespaced",
                            api_version,
                            each["responseKind"]["kind"],
                        )
                        for word in (each["resource"], each.get("singularResource"), *each.get("shortNames", ())):
                            yield word, resource

    def _ask(self, path: str, accept: str = "application/json") -> Any:
        """The body of an answer; asked again over a new connection where the old one has ended."""
        for last in (False, True):
            connection = self._connection or self._connect()
            try:
                connection.request("GET", path, headers={"Accept": accept})
                answer = connection.getresponse()
                body = answer.read()
                break
            except (OSError, http.client.HTTPException) as failure:
                connection.close()
                fresh, self._connection = self._connection is None, None
                assert not (last or fresh), f"GET {path}: {failure}"
        self._connection = connection
        assert answer.status == http.client.OK, f"GET {path}: {answer.status} {body.decode(errors='replace')}"
        return json.loads(body)

    def _connect(self) -> http.client.HTTPSConnection:
        host, port = self._address.hostname, self._address.port
        assert host is not None
        return http.client.HTTPSConnection(host, port, context=self._tls, timeout=_TIMEOUT_S)


def parse(words: tuple[str, ...]) -> Query:
    """The words behind ``kubectl get``."""
    kinds, names, namespace, selectors = "", [], "default", {}
    everywhere = False
    rest = iter(words)
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
def reader_of(kubeconfig: str, _changed_ns: int) -> Reader:
    """The reader of a kubeconfig as the file is now."""
    return Reader(kubeconfig)
