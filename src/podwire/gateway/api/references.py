"""References between objects: those that leave a namespace need a ReferenceGrant in the namespace that they enter."""

from collections.abc import Iterable

import msgspec

from podwire.model.gatewayapi import GROUP, GrantTo, ReferenceGrant


class ReferenceProblem(msgspec.Struct, frozen=True, gc=False):
    """Why a reference is not followed: the reason of the condition, and a text with the field."""

    reason: str
    message: str


NO_PROBLEM = ReferenceProblem("", "")


class ReferenceTarget(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The object that a reference names; Secrets and Services are of the core group."""

    kind: str
    namespace: str
    name: str


def is_granted(grants: Iterable[ReferenceGrant], kind: str, namespace: str, target: ReferenceTarget) -> bool:
    """Whether objects of a kind of Gateway API in a namespace may refer to the target."""
    if namespace == target.namespace:
        return True
    return any(
        any((origin.group, origin.kind, origin.namespace) == (GROUP, kind, namespace) for origin in grant.spec.origins)
        and any(_covers(to, target) for to in grant.spec.to)
        for grant in grants
        if grant.metadata.namespace == target.namespace
    )


def _covers(to: GrantTo, target: ReferenceTarget) -> bool:
    return (to.group, to.kind) == ("", target.kind) and to.name in (None, "", target.name)


def not_granted(path: str, target: ReferenceTarget) -> ReferenceProblem:
    """The problem of a reference without a grant."""
    text = f"{path}: no ReferenceGrant in {target.namespace} allows {target.kind} {target.namespace}/{target.name}"
    return ReferenceProblem("RefNotPermitted", text)
