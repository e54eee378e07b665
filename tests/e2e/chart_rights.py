"""What the chart's accounts may do and what they did, from the chart's roles and the audit log of the API server."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

_SERVICES_OF_BGP = "addresses of Services that BGP announces; routing.backend can become bgp while pods run"
UNUSED: Mapping[str, str] = {
    "agent: * *.projectcalico.org": "objects of BGP; routing.backend can become bgp while pods run",
    "agent: list services": _SERVICES_OF_BGP,
    "agent: watch services": _SERVICES_OF_BGP,
    "agent: * endpointslices.discovery.k8s.io": _SERVICES_OF_BGP,
    "agent: * secrets": "passwords of BGP sessions, the Secret bgp-secrets and those that the values name",
    "agent: * configmaps": "the report of the policies in force, which follows them",
    "agent: patch nodes/status": "conditions of nodes that routing does not reach",
    "controller: patch *": "the status of policies and EgressPolicies, where there are any",
    "controller: create leases.coordination.k8s.io": "the first election in a cluster",
    "agent: * leases.coordination.k8s.io": "the node of an EgressPolicy",
    "*: * events": "warnings about wrong objects and nodes, and repeated ones",
}
"""Rights that a part alone does not use in a cluster without such objects, by pattern, each with its reason."""
NEVER = ("agent: * *.projectcalico.org", "agent: * secrets", "agent: delete configmaps", "*: * events")
"""Those of :data:`UNUSED` that also a cluster with policies and EgressPolicies does not use."""
_ACCOUNT = "system:serviceaccount:kube-system:podwire-"


class Action(NamedTuple):
    """A verb on a resource; ``name`` is set where the rule names the object."""

    account: str
    verb: str
    resource: str
    """``pods``, ``nodes/status`` or, outside the core group, ``leases.coordination.k8s.io``."""

    def __str__(self) -> str:
        return f"{self.account}: {self.verb} {self.resource}"


def _resource(group: str, resource: str) -> str:
    return f"{resource}.{group}" if group else resource


def granted(objects: Iterable[Mapping[str, Any]]) -> set[Action]:
    """The actions that the roles among the objects allow; each role has the name of its account."""
    result: set[Action] = set()
    for item in objects:
        if item["kind"] not in ("Role", "ClusterRole"):
            continue
        account = item["metadata"]["name"].removeprefix("podwire-")
        for rule in item["rules"]:
            result |= {
                Action(account, verb, _resource(group, resource))
                for group in rule["apiGroups"]
                for resource in rule["resources"]
                for verb in rule["verbs"]
            }
    return result


def used(log: Path) -> set[Action]:
    """The actions of podwire's accounts; an apply that made an object needs the verb ``create``, too."""
    result: set[Action] = set()
    for event in _events(log):
        reference = event.get("objectRef")
        if reference is None:
            continue
        resource = reference["resource"] + (f"/{reference['subresource']}" if "subresource" in reference else "")
        verbs = [event["verb"]]
        if event["verb"] in ("patch", "update") and event["responseStatus"]["code"] == 201:
            verbs.append("create")
        account = event["user"]["username"].removeprefix(_ACCOUNT)
        result |= {Action(account, verb, _resource(reference.get("apiGroup", ""), resource)) for verb in verbs}
    return result


def unexplained(actions: Iterable[Action], patterns: Collection[str]) -> list[str]:
    """The actions that no pattern matches."""
    return sorted(text for text in map(str, actions) if not any(fnmatchcase(text, pattern) for pattern in patterns))


def refused(log: Path) -> list[str]:
    """Requests of podwire's accounts that were forbidden."""
    return [f"{e['user']['username']} {e['verb']} {e['requestURI']}" for e in _events(log) if _code(e) == 403]


def _code(event: Mapping[str, Any]) -> int:
    return int(event["responseStatus"]["code"])


def _events(log: Path) -> Iterator[dict[str, Any]]:
    for line in log.read_text().splitlines():
        event = json.loads(line)
        if event["user"].get("username", "").startswith(_ACCOUNT):
            yield event
