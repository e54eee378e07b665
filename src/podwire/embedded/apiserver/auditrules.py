"""The rules of an audit log: which requests are written, and with how much of them. Pure.

The form is that of a Policy of ``audit.k8s.io/v1``. The first rule that matches a request decides its level; a request
that no rule matches is not written. Source: ``k8s.io/apiserver/pkg/audit/policy/checker.go``.
"""

from typing import Literal

import msgspec

from podwire.embedded.apiserver.authorization.rules import RequestAttributes, url_matches
from podwire.embedded.apiserver.calls import UserInfo

AuditLevel = Literal["None", "Metadata", "Request", "RequestResponse"]


class AuditResources(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Resources of one API group; an empty list has all of them."""

    group: str = ""
    resources: tuple[str, ...] = ()
    """``pods``, ``pods/log``, ``pods/*``, ``*/status`` or ``*``."""
    resource_names: tuple[str, ...] = ()

    def match(self, asked: RequestAttributes) -> bool:
        """Whether an action is on one of them."""
        if asked.path or asked.group != self.group or (self.resource_names and asked.name not in self.resource_names):
            return False
        forms = {asked.target, "*"}
        if asked.subresource:
            forms |= {f"{asked.resource}/*", f"*/{asked.subresource}"}
        return not self.resources or bool(forms & set(self.resources))


class AuditRule(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """One rule; an empty field matches everything."""

    level: AuditLevel
    users: tuple[str, ...] = ()
    user_groups: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ()
    resources: tuple[AuditResources, ...] = ()
    namespaces: tuple[str, ...] = ()
    """The empty text is an object without a namespace."""
    non_resource_urls: tuple[str, ...] = msgspec.field(default=(), name="nonResourceURLs")

    def match(self, user: UserInfo | None, asked: RequestAttributes) -> bool:
        """Whether the rule decides about an action."""
        name, groups = (user.name, user.groups) if user else ("", ())
        if (self.users and name not in self.users) or (self.user_groups and not {*self.user_groups} & {*groups}):
            return False
        if self.verbs and asked.verb not in self.verbs:
            return False
        return self._matches_path(asked.path) if asked.path else self._matches_resource(asked)

    def _matches_path(self, path: str) -> bool:
        if self.non_resource_urls:
            return any(url_matches(url, path) for url in self.non_resource_urls)
        return not self.resources and not self.namespaces

    def _matches_resource(self, asked: RequestAttributes) -> bool:
        if self.non_resource_urls or (self.namespaces and asked.namespace not in self.namespaces):
            return False
        return not self.resources or any(resources.match(asked) for resources in self.resources)


class AuditSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The file of the audit log, and its rules."""

    file: str
    """Events are appended, one JSON object on each line; absolute."""
    rules: tuple[AuditRule, ...] = (AuditRule("Metadata"),)

    def level(self, user: UserInfo | None, asked: RequestAttributes) -> AuditLevel:
        """How much of a request is written."""
        return next((rule.level for rule in self.rules if rule.match(user, asked)), "None")
