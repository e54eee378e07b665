"""A finding, and the list of all kinds of findings (pure)."""

from collections.abc import Mapping

import msgspec

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)
"""The most severe first."""

KINDS: Mapping[str, tuple[str, str]] = {
    "section-ignored": (ERROR, "rules of a direction that policyTypes does not name"),
    "end-before-port": (ERROR, "a range of ports that ends before it begins"),
    "except-outside": (ERROR, "an exception outside of its block"),
    "no-address": (ERROR, "a block that is not a range of addresses"),
    "given-twice": (WARNING, "a policy that the files define twice"),
    "not-enforced": (WARNING, "a policy of a kind that podwire does not enforce"),
    "selects-nothing": (WARNING, "a policy that selects no pod"),
    "peer-matches-nothing": (WARNING, "a peer that no pod, namespace or node matches"),
    "own-namespace-only": (WARNING, "a podSelector for which only pods of other namespaces have the labels"),
    "host-network-only": (WARNING, "a selector that matches only pods in the host network, or finished pods"),
    "peers-or": (WARNING, "two peers of which either is enough, where both together were probably meant"),
    "isolates-ingress-too": (WARNING, "egress rules without policyTypes: nothing can connect to the pods any more"),
    "does-not-isolate": (WARNING, "an empty list of rules that isolates no pod, because of policyTypes"),
    "empty-list-allows-all": (WARNING, "`from`, `to` or `ports` that is empty: it restricts nothing"),
    "port-name-unknown": (WARNING, "a named port that no pod has"),
    "port-name-protocol": (WARNING, "a named port that pods have only with another protocol"),
    "service-port": (WARNING, "the port of a Service; policies see the port of its pods"),
    "port-protocol": (WARNING, "a port that pods declare only with another protocol"),
    "no-dns": (WARNING, "pods that may connect to others but cannot look up names"),
    "block-of-services": (WARNING, "a block with addresses of Services, which policies never see"),
    "block-of-one-pod": (WARNING, "a block with the address of one pod, which changes when the pod is replaced"),
    "host-bits": (WARNING, "a block with host bits in its address"),
    "one-family": (WARNING, "all addresses of only one IP family, for pods that have both families"),
    "never-reached": (WARNING, "a rule of a cluster policy that never decides, because earlier rules cover it"),
    "overruled": (WARNING, "a rule of a NetworkPolicy whose connections a cluster policy denies"),
    "equal-priority": (WARNING, "contradicting rules of two cluster policies with equal priority"),
    "unknown-kind": (WARNING, "a peer or port of a kind that podwire does not know; it allows nothing"),
    "unknown-annotation": (WARNING, "an annotation of podwire.io with an unknown name or value"),
    "unknown-ignore": (WARNING, "an annotation that ignores a kind of finding which does not exist"),
    "covered": (NOTE, "a rule that other rules cover: it changes nothing"),
    "block-of-pods": (NOTE, "a block with addresses of pods, which are reused by other pods"),
    "allows-all": (NOTE, "a rule without any restriction"),
    "in-audit": (NOTE, "a policy in audit: it is not in force"),
    "no-rules": (NOTE, "a cluster policy without rules"),
    "port-name-partly": (NOTE, "a named port that only some of the selected pods have"),
    "host-network-partly": (NOTE, "selected pods in the host network, to which no policy applies"),
    "not-checked": (NOTE, "a selector of pods or labels that the files do not have"),
}
"""The severity and the description of each kind of finding, by its identifier."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One probable mistake."""

    id: str
    severity: str
    kind: str
    """The kind of the object: NetworkPolicy, ClusterNetworkPolicy, or a kind that podwire does not enforce."""
    name: str
    """``namespace/name`` of the object."""
    field: str
    """The path of the field, as ``spec.ingress[0].from[1]``."""
    text: str
    """The mistake, and how to correct it."""
    where: str = ""
    """``file:line`` of the field; empty when no file has the object."""

    def __str__(self) -> str:
        location = f"{self.where}: " if self.where else ""
        return f"{location}{self.severity}: {self.kind} {self.name} {self.field}: {self.text} [{self.id}]"
