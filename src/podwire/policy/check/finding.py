"""A finding, and the list of all kinds of them (pure)."""

from collections.abc import Mapping

import msgspec

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)
"""The gravest first."""

KINDS: Mapping[str, tuple[str, str]] = {
    "section-ignored": (ERROR, "rules of a direction that is none of the policy's types"),
    "end-before-port": (ERROR, "a range of ports that ends before it begins"),
    "except-outside": (ERROR, "an exception that is no part of its block"),
    "no-address": (ERROR, "a block that is no range of addresses"),
    "given-twice": (WARNING, "a policy that the files have a second time"),
    "not-enforced": (WARNING, "a policy of a kind that podwire does not enforce"),
    "selects-nothing": (WARNING, "a policy that selects no pod"),
    "peer-matches-nothing": (WARNING, "a peer that no pod, namespace or node matches"),
    "own-namespace-only": (WARNING, "a podSelector for which only pods of other namespaces have the labels"),
    "host-network-only": (WARNING, "a selector that matches only pods with their node's network, or ended ones"),
    "peers-or": (WARNING, "two peers of which either is enough, where both together were probably meant"),
    "isolates-ingress-too": (WARNING, "egress rules without policyTypes: nobody reaches the pods any more"),
    "does-not-isolate": (WARNING, "an empty list of rules that isolates nobody, because of policyTypes"),
    "empty-list-allows-all": (WARNING, "`from`, `to` or `ports` that is empty: it restricts nothing"),
    "port-name-unknown": (WARNING, "a named port that no pod has"),
    "port-name-protocol": (WARNING, "a named port that pods have with another protocol only"),
    "service-port": (WARNING, "the port of a Service, where policies see that of its pods"),
    "port-protocol": (WARNING, "a port that pods declare with another protocol only"),
    "no-dns": (WARNING, "pods that may connect to others and cannot look up names"),
    "block-of-services": (WARNING, "a block with addresses of Services, which policies never see"),
    "block-of-one-pod": (WARNING, "a block with the address of a pod, which the next pod of its kind will not have"),
    "host-bits": (WARNING, "a block with bits behind its prefix"),
    "one-family": (WARNING, "all of IPv4 or IPv6, and nothing of the other, for pods that have both"),
    "never-reached": (WARNING, "a rule of a cluster policy that earlier rules leave nothing for"),
    "overruled": (WARNING, "a rule of a NetworkPolicy that a cluster policy denies all of"),
    "equal-priority": (WARNING, "rules of two cluster policies that contradict each other at one priority"),
    "unknown-kind": (WARNING, "a peer or port of a kind that podwire does not know, taken as closed"),
    "unknown-annotation": (WARNING, "an annotation of podwire.io that is not known, or has a value that is not"),
    "unknown-ignore": (WARNING, "an annotation that ignores a kind of finding which does not exist"),
    "covered": (NOTE, "a rule that other rules cover: without it nothing would change"),
    "block-of-pods": (NOTE, "a block with addresses of pods, which are given to one pod and then to another"),
    "allows-all": (NOTE, "a rule without any restriction"),
    "in-audit": (NOTE, "a policy in audit: it is not in force"),
    "no-rules": (NOTE, "a cluster policy without rules"),
    "port-name-partly": (NOTE, "a named port that only some of the selected pods have"),
    "host-network-partly": (NOTE, "selected pods with their node's network, for which no policy holds"),
    "not-checked": (NOTE, "what the files do not have: pods or labels of a namespace"),
}
"""By name: how grave it is, and what it is."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is probably not meant."""

    id: str
    severity: str
    kind: str
    """Of the object: NetworkPolicy or ClusterNetworkPolicy, or what is not enforced."""
    name: str
    """``namespace/name`` of the object."""
    field: str
    """The path of the field, as ``spec.ingress[0].from[1]``."""
    text: str
    """What happens, and what to do about it."""
    where: str = ""
    """``file:line`` of the field; empty where the object is none of a file."""

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.severity}: {self.kind} {self.name} {self.field}: {self.text} [{self.id}]"
