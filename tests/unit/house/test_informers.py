"""Everything that follows the API does so by informers, and says which objects it leaves out."""

import ast

from tests.unit.house.syntax import MODULES, SRC, text, tree

_OWN_LEASES = "Leases that only podwire writes; an unreadable one is no renewal"
_FOLLOWED_ELSEWHERE = "the part that constructs it reports its undecodable objects"
_RAW = "objects are kept as JSON, which always decodes"
SILENT = {
    "cni/ipam/blocks/keeper.py": _FOLLOWED_ELSEWHERE,
    "controllers/ipamblocks/controller.py": "the agents report undecodable blocks",
    "kube/namedsecrets.py": "a Secret that cannot be read is a problem of the object that names it",
    "kube/shared.py": _FOLLOWED_ELSEWHERE,
    "loadbalancer/claims.py": _OWN_LEASES,
    "loadbalancer/nodeleases.py": _OWN_LEASES,
    "loadbalancer/statusobjects.py": "status objects that only podwire writes",
    "local/conformance/watches.py": _RAW,
    "local/readiness.py": "a command that waits for objects; the API server of the cluster has checked them",
    "local/serving.py": "a command that waits for nodes; the API server of the cluster has checked them",
    "policy/informers.py": _FOLLOWED_ELSEWHERE,
    "routing/backends/bgp/servicefollow.py": "the part of Services reports Services and slices",
    "routing/egress/view.py": _FOLLOWED_ELSEWHERE,
}
"""Modules that construct informers without Events for objects that cannot be decoded, and why."""
LISTING = {
    "embedded/workloads/autoscaling/sources.py": "metrics of pods, which an extension server computes for each request",
    "kube/informer.py": "the list of an informer",
    "kube/namedsecrets.py": "asks whether a Secret may be read",
    "kube/optional.py": "asks whether a kind is served",
    "kube/podruns.py": "pods that a command has made",
    "loadbalancer/statusobjects.py": "own status objects, before one is made",
}
"""Modules of daemons that list objects without an informer, and why: a list that is suddenly empty is not confirmed."""
_COMMANDS = ("cli/", "upgrade/", "install/", "local/", "testing/", "flows/", "why/", "agent/why.py")


def _name(path: object) -> str:
    return str(path).removeprefix(f"{SRC}/")


def test_undecodable_objects_get_an_event_or_a_reason() -> None:
    silent = {
        _name(path)
        for path in MODULES
        if any(isinstance(node, ast.Call) and ast.unparse(node.func) == "Informer" for node in ast.walk(tree(path)))
        and "follow_rejected" not in text(path)
    }
    assert silent == set(SILENT)


def test_daemons_follow_objects_by_informers_alone() -> None:
    """Informers confirm a list that is suddenly empty (docs/adr/0013); other lists would be believed at once."""
    listing = {
        _name(path)
        for path in MODULES
        if not _name(path).startswith(_COMMANDS)
        and any(isinstance(node, ast.Call) and _lists(node.func) for node in ast.walk(tree(path)))
    }
    assert listing == set(LISTING)


def _lists(function: ast.expr) -> bool:
    """Whether a function that is called lists objects: that of a client, or the one for kinds that may be missing."""
    if isinstance(function, ast.Name):
        return function.id == "list_if_served"
    return isinstance(function, ast.Attribute) and function.attr == "list" and "client" in ast.unparse(function.value)
