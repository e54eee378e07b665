"""The values of an upgrade plan: image references, components, findings, steps. Pure.

A plan is a value with a JSON form (:func:`plan_json`, :func:`parse_plan`). Its ID is a digest of the content, so that
the same cluster and the same targets give the same ID, and a plan file that was edited is refused.

A step changes objects by strategic merge patches. Containers in a patch carry their names, so that the same body also
serves as a server-side apply of the fields that the step changes.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from podwire.errors import ConfigError
from podwire.model.meta import Fact

_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"[a-z0-9]+(?:[+._-][a-z0-9]+)*:[0-9a-fA-F]{32,}")

Severity = Literal["blocker", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("blocker", "warning", "info")
"""The most serious first."""

ComponentKind = Literal["DaemonSet", "Deployment", "StaticPod", "HelmChart", "Addon"]
"""StaticPod: a file on a node that the kubelet runs. HelmChart: packaged by the distribution. Addon: of the cloud."""

Owner = Literal["cluster", "distribution", "cloud", "operator"]
"""The side that upgrades a component: this command; the distribution with its own server; the cloud's own API; the
controller of another object, which would set a changed image back."""

Gate = Literal["api-servers", "rollout", "node-ready", "dns", "services", "pods", "flows"]
"""A condition of a step. ``api-servers`` holds before the step: every API server has the plan's version. The rest hold
after each wave: the workload is rolled out, the nodes are Ready, names resolve, Services answer, pods reach each other,
the numbered flows lost nothing."""

Scope = Literal["nodes", "whole"]
"""nodes: node by node, in waves; whole: all replicas by the rolling update of the workload."""

Action = Literal["images", "corefile", "configuration", "manual"]
"""manual: a person does it, by ``UpgradeStep.command``; the step is passed when its gates hold."""


class ImageReference(Fact, frozen=True, kw_only=True):
    """A container image; empty fields are absent from the text form."""

    registry: str = ""
    """Host, with a port if the reference has a port; empty: the runtime's default registry."""
    repository: str
    tag: str = ""
    digest: str = ""
    """As ``sha256:<hex>``."""

    def __str__(self) -> str:
        name = f"{self.registry}/{self.repository}" if self.registry else self.repository
        tag = f":{self.tag}" if self.tag else ""
        return f"{name}{tag}" + (f"@{self.digest}" if self.digest else "")

    @property
    def name(self) -> str:
        """Registry and repository, without tag and digest."""
        return f"{self.registry}/{self.repository}" if self.registry else self.repository

    @property
    def short_name(self) -> str:
        """The last segment of the repository: ``coredns`` of ``registry.k8s.io/coredns/coredns``."""
        return self.repository.rpartition("/")[2]

    def with_tag(self, tag: str) -> "ImageReference":
        """The same image with another tag; the digest belongs to the old tag and is left out."""
        return msgspec.structs.replace(self, tag=tag, digest="")

    def pinned(self, digests: Mapping[str, str]) -> "ImageReference":
        """The reference with the digest that the table has for its text form; unchanged without an entry."""
        digest = digests.get(str(self))
        return self if digest is None else msgspec.structs.replace(self, digest=digest)

    def mirrored(self, mirrors: Mapping[str, str]) -> "ImageReference":
        """The reference in a mirror; ``mirrors`` has prefixes of names, and the longest prefix that fits decides.

        A prefix ends at a slash: ``registry.k8s.io`` fits ``registry.k8s.io/kube-proxy``, and ``docker.io`` fits a
        reference without a registry.
        """
        full = self.name if self.registry else f"docker.io/{self.repository}"
        fitting = [prefix for prefix in mirrors if full == prefix or full.startswith(f"{prefix}/")]
        if not fitting:
            return self
        longest = max(fitting, key=len)
        rewritten = parse_image(mirrors[longest].rstrip("/") + full[len(longest) :], "mirror")
        return msgspec.structs.replace(rewritten, tag=self.tag, digest=self.digest)


def parse_image(text: str, source: str, path: str = "") -> ImageReference:
    """The image reference of a text; the first segment is a registry if it has a dot or a colon or is ``localhost``.

    Raises: ConfigError naming ``source`` and ``path``.
    """
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise ConfigError(source, path, f"expected a digest such as sha256:<64 hex digits> after @, got {text!r}")
    first, slash, after = rest.partition("/")
    registry = first if slash and ("." in first or ":" in first or first == "localhost") else ""
    repository, colon, tag = (after if registry else rest).partition(":")
    if not _REPOSITORY.fullmatch(repository) or (colon and not _TAG.fullmatch(tag)):
        raise ConfigError(source, path, f"expected an image such as registry.k8s.io/kube-proxy:v1.36.0, got {text!r}")
    return ImageReference(registry=registry, repository=repository, tag=tag, digest=digest)


class ContainerImage(Fact, frozen=True, kw_only=True):
    """The image of one container of a pod template."""

    container: str
    image: ImageReference
    init: bool = False
    """Whether it is an init container."""


class Component(Fact, frozen=True, kw_only=True):
    """A part of the cluster's network and what runs it."""

    name: str
    """``coredns``, ``kube-proxy``, ``podwire-agent``, ``flannel``, ``kube-apiserver``, ..."""
    kind: ComponentKind
    namespace: str = ""
    workload: str = ""
    """The name of the object; of a static pod the name without the node's."""
    images: tuple[ContainerImage, ...] = ()
    version: str = ""
    """As ``1.12.0``, of the main container's image; empty: the image does not tell."""
    replicas: int = 0
    """Desired pods; of a DaemonSet the nodes on which it should run."""
    ready: int = 0
    owner: Owner = "cluster"
    owned_by: str = ""
    """The object whose controller makes the workload, as ``Installation default``; empty: none."""
    generation: int = 0
    """``metadata.generation`` at the time of the plan."""
    update_strategy: str = "RollingUpdate"
    """RollingUpdate, OnDelete or Recreate."""
    max_unavailable: str = ""
    """As the workload has it: a number or a percentage; empty: the API's default."""

    @property
    def title(self) -> str:
        """As ``DaemonSet kube-system/kube-proxy``."""
        return f"{self.kind} {self.namespace}/{self.workload}" if self.namespace else f"{self.kind} {self.workload}"


class UpgradeFinding(Fact, frozen=True, kw_only=True):
    """Something to know before an upgrade; a blocker stops it."""

    severity: Severity
    object: str
    """As ``ConfigMap kube-system/coredns``."""
    field: str = ""
    """The path in the object; empty: the object as a whole."""
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        where = f"{self.object}: {self.field}" if self.field else self.object
        return f"{self.severity}: {where}: {self.message}" + (f"; {self.remedy}" if self.remedy else "")


class ImageChange(Fact, frozen=True, kw_only=True):
    """The image of one container before and after a step."""

    container: str
    before: ImageReference
    after: ImageReference
    init: bool = False


class PlannedChange(Fact, frozen=True, kw_only=True):
    """A change of one object: a strategic merge patch of the fields that the step changes."""

    api_version: str
    kind: str
    namespace: str = ""
    name: str
    patch: dict[str, Any]
    diff: str = ""
    """A unified diff of a text in the object, such as a Corefile; empty: the patch says all."""
    digests: Mapping[str, str] = {}
    """Of a ConfigMap: by key the digest of the text that the new one was made from."""
    exclusive: bool = False
    """Of a ConfigMap whose old text the new pods refuse, and whose new text the old pods refuse: the new pods of the
    step read a copy until all pods are new."""

    @property
    def title(self) -> str:
        """As ``ConfigMap kube-system/coredns``."""
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


class Wave(Fact, frozen=True, kw_only=True):
    """Nodes that are upgraded at the same time; the first wave of a step is its canary."""

    nodes: tuple[str, ...]
    zone: str = ""
    """The zone of all nodes; empty: several zones, or no zones."""


class UpgradeStep(Fact, frozen=True, kw_only=True):
    """One step of a plan; the steps of a plan are done in their order."""

    id: str
    """As ``3-kube-proxy``, unique in the plan."""
    component: str
    """The name of the component."""
    action: Action
    scope: Scope = "whole"
    images: tuple[ImageChange, ...] = ()
    changes: tuple[PlannedChange, ...] = ()
    """In the order in which they are made. The reverse patches come from the backup."""
    gates: tuple[Gate, ...] = ()
    waves: tuple[Wave, ...] = ()
    """In order; empty for the scope ``whole``."""
    seconds: int = 0
    """The estimated duration."""
    risk: str = ""
    """One sentence: what traffic the step may touch."""
    command: str = ""
    """What a person does for the action ``manual``."""


class UpgradePlan(Fact, frozen=True, kw_only=True):
    """The whole plan."""

    cluster: str = ""
    """The UID of the namespace kube-system: the identity of the cluster."""
    layout: str = ""
    """``kubeadm``, ``k3s``, ``eks``, ``gke``, ``aks``, ``podwire``, or ``plain``."""
    from_version: str
    """The version of the oldest API server, as ``1.35.2``."""
    to_version: str
    """The target, as ``1.36``, or ``1.36.1`` with a patch release."""
    nodes: int = 0
    components: tuple[Component, ...] = ()
    findings: tuple[UpgradeFinding, ...] = ()
    """The most serious first."""
    steps: tuple[UpgradeStep, ...] = ()
    id: str = ""
    """The first 16 digits of the SHA-256 of the plan without the ID."""

    @property
    def blocked(self) -> bool:
        """Whether there is a blocker."""
        return any(finding.severity == "blocker" for finding in self.findings)


def text_digest(text: str) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def identified(plan: UpgradePlan) -> UpgradePlan:
    """The plan with the ID of its content."""
    bare = msgspec.structs.replace(plan, id="")
    return msgspec.structs.replace(plan, id=_digest(bare))


def _digest(plan: UpgradePlan) -> str:
    return hashlib.sha256(msgspec.json.encode(plan, order="sorted")).hexdigest()[:16]


def plan_json(plan: UpgradePlan) -> str:
    """The plan as an indented JSON document, with a line end."""
    return msgspec.json.format(msgspec.json.encode(plan), indent=2).decode() + "\n"


def parse_plan(text: str | bytes, source: str) -> UpgradePlan:
    """The plan of a JSON document.

    Raises: ConfigError when it is no plan, or when its content does not fit its ID.
    """
    try:
        plan = msgspec.json.decode(text, type=UpgradePlan)
    except msgspec.DecodeError as failure:
        raise ConfigError(source, "", f"expected a plan of `podwire upgrade plan -o json`: {failure}") from failure
    expected = _digest(msgspec.structs.replace(plan, id=""))
    if plan.id != expected:
        raise ConfigError(source, "id", f"expected {expected}, the digest of this content, got {plan.id!r}; plan again")
    return plan
