"""Reviews: requests about the identity or the rights of a user. They are answered and not stored.

Sources: ``k8s.io/kubernetes/pkg/registry/authorization``, ``pkg/registry/authentication`` and
``pkg/apis/authorization/validation``.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.auth import Authenticator
from podwire.embedded.apiserver.authorization.authorizer import Authorizer
from podwire.embedded.apiserver.authorization.defaultobjects import rendered
from podwire.embedded.apiserver.authorization.nodes import node_name
from podwire.embedded.apiserver.authorization.policy import aggregated
from podwire.embedded.apiserver.authorization.rules import RequestAttributes
from podwire.embedded.apiserver.calls import Call, UserInfo
from podwire.embedded.apiserver.failures import Cause
from podwire.embedded.apiserver.validate import causes

Object = dict[str, Any]


class Reviews:
    """Answers the review kinds of authentication and authorization."""

    def __init__(self, authenticator: Authenticator, authorizer: Authorizer) -> None:
        self._authenticator = authenticator
        self._authorizer = authorizer

    def answer(self, call: Call, obj: Object) -> Object:
        """The review with its status filled in.

        Raises: Invalid for a review that asks nothing or two things; ApiError 400 without a namespace, 406 when the
        client takes only tables or metadata, which reviews do not have.
        """
        if call.accept and all(";as=" in form.replace(" ", "") for form in call.accept.split(",")):
            raise failures.not_acceptable()
        kind, spec = call.kind.kind, obj.get("spec") or {}
        obj["metadata"] = {**(obj.get("metadata") or {}), "creationTimestamp": None}
        if kind == "SelfSubjectReview":
            obj["status"] = {"userInfo": user_info(call.user)}
        elif kind == "TokenReview":
            obj["status"] = self._identified(spec)
        elif kind == "SelfSubjectRulesReview":
            obj["status"] = self._listed(call.user, str(spec.get("namespace") or ""))
        else:
            problems = list(_problems(call, spec))
            if problems:
                raise failures.invalid(call.kind, "", problems)
            user = call.user if kind == "SelfSubjectAccessReview" else _subject(spec)
            obj["status"] = self._decided(user, spec)
        return obj

    def _identified(self, spec: Object) -> Object:
        audiences = list(spec.get("audiences") or ())
        user = self._authenticator.verify(str(spec.get("token", "")), audiences)
        if user is None:
            return {"authenticated": False, "user": {}, "error": "invalid bearer token"}
        return {"authenticated": True, "user": user_info(user), "audiences": audiences}

    def _decided(self, user: UserInfo, spec: Object) -> Object:
        decision = self._authorizer.decide(user, attributes_in(spec))
        return {"allowed": decision.allowed} | ({"reason": decision.reason} if decision.reason else {})

    def _listed(self, user: UserInfo, namespace: str) -> Object:
        if not namespace:
            raise failures.bad_request("no namespace on request")
        held_rules = self._authorizer.policy.held(user, namespace)
        rules = rendered(held_rules.rules)
        problems = [aggregated(held_rules.problems)] if held_rules.problems else []
        if node_name(user):
            problems.append("node authorizer does not support user rule resolution")
        status: Object = {
            "resourceRules": [rule for rule in rules if "resources" in rule],
            "nonResourceRules": [rule for rule in rules if "nonResourceURLs" in rule],
            "incomplete": bool(node_name(user)),
        }
        return status | ({"evaluationError": ", ".join(problems)} if problems else {})


def user_info(user: UserInfo) -> Object:
    """The ``authentication.k8s.io/v1`` UserInfo of a user."""
    info: Object = {"username": user.name}
    if user.uid:
        info["uid"] = user.uid
    if user.groups:
        info["groups"] = list(user.groups)
    if user.extra:
        info["extra"] = {key: list(values) for key, values in user.extra.items()}
    return info


def attributes_in(spec: Object) -> RequestAttributes:
    """The action that an access review asks about."""
    path = spec.get("nonResourceAttributes")
    if path is not None:
        return RequestAttributes(path.get("verb") or "", path=path.get("path") or "/")
    on = spec.get("resourceAttributes") or {}
    names = ("verb", "group", "version", "resource", "subresource", "namespace", "name")
    terms = (on.get("fieldSelector") or {}).get("requirements") or ()
    selected: Mapping[str, str] = {
        term.get("key", ""): term["values"][0]
        for term in terms
        if term.get("operator") == "In" and len(term.get("values") or ()) == 1
    }
    return RequestAttributes(**{name: on.get(name) or "" for name in names}, selected=selected)


def _subject(spec: Object) -> UserInfo:
    extra = {key: tuple(values) for key, values in (spec.get("extra") or {}).items()}
    return UserInfo(spec.get("user") or "", tuple(spec.get("groups") or ()), spec.get("uid") or "", extra)


def _problems(call: Call, spec: Object) -> Iterator[Cause]:
    on, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if on is not None and path is not None:
        detail = "cannot be specified in combination with resourceAttributes"
        yield causes.invalid("spec.nonResourceAttributes", path, detail)
    if on is None and path is None:
        detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        yield causes.invalid("spec.resourceAttributes", None, detail)
    if call.kind.kind != "SelfSubjectAccessReview" and not spec.get("user") and not spec.get("groups"):
        yield causes.invalid("spec.user", "", "at least one of user or group must be specified")
    if call.kind.kind == "LocalSubjectAccessReview":
        if path is not None:
            yield causes.invalid("spec.nonResourceAttributes", path, "disallowed on this kind of request")
        elif on is not None and (on.get("namespace") or "") != call.namespace:
            path = "spec.resourceAttributes.namespace"
            yield causes.invalid(path, on.get("namespace"), "must match metadata.namespace")
