"""The controls that the level restricted adds to those of baseline.

Source: ``k8s.io/pod-security-admission/policy``.
"""

from podwire.embedded.apiserver.admission.podsecurity.baseline import (
    Violation,
    added_capabilities,
    seccomp_profile,
    wrong_seccomp,
)
from podwire.embedded.apiserver.admission.podsecurity.containers import (
    Object,
    containers,
    counted,
    listed,
    names,
    plural,
    security,
    setters,
)

_VOLUMES = frozenset({
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected", "secret",
})  # fmt: skip
_FORBIDDEN_VOLUMES = (
    "hostPath", "gcePersistentDisk", "awsElasticBlockStore", "gitRepo", "nfs", "iscsi", "glusterfs", "rbd",
    "flexVolume", "cinder", "cephfs", "flocker", "fc", "azureFile", "vsphereVolume", "quobyte", "azureDisk",
    "photonPersistentDisk", "portworxVolume", "scaleIO", "storageos",
)  # fmt: skip


def on_windows(pod: Object) -> bool:
    """Whether the pod declares that it runs on Windows, which has none of the controls of Linux."""
    return (pod["spec"].get("os") or {}).get("name") == "windows"


def allow_privilege_escalation(pod: Object) -> Violation | None:
    """Processes that may gain rights, as set-user-ID programs do."""
    bad = names(pod["spec"], lambda container: security(container).get("allowPrivilegeEscalation") is not False)
    if not bad:
        return None
    detail = f"{counted(bad)} must set securityContext.allowPrivilegeEscalation=false"
    return Violation("allowPrivilegeEscalation != false", detail)


def capabilities(pod: Object) -> Violation | None:
    """Containers that keep or add capabilities."""
    spec, allowed = pod["spec"], frozenset({"NET_BIND_SERVICE"})
    details = []
    keeping = names(
        spec, lambda container: "ALL" not in ((security(container).get("capabilities") or {}).get("drop") or ())
    )
    if keeping:
        details.append(f'{counted(keeping)} must set securityContext.capabilities.drop=["ALL"]')
    adding = names(spec, lambda container: bool(added_capabilities(container, allowed)))
    if adding:
        values = sorted({name for container in containers(spec) for name in added_capabilities(container, allowed)})
        details.append(f"{counted(adding)} must not include {listed(values)} in securityContext.capabilities.add")
    return Violation("unrestricted capabilities", "; ".join(details)) if details else None


def volume_types(pod: Object) -> Violation | None:
    """Volumes that are neither of the cluster nor of the pod."""
    bad = [volume for volume in pod["spec"].get("volumes") or () if not _VOLUMES & volume.keys()]
    if not bad:
        return None
    kinds = sorted({next((kind for kind in _FORBIDDEN_VOLUMES if kind in volume), "unknown") for volume in bad})
    use = "uses" if len(bad) == 1 else "use"
    noun = plural("restricted volume type", kinds)
    detail = f"{counted([volume['name'] for volume in bad], 'volume')} {use} {noun} {listed(kinds)}"
    return Violation("restricted volume types", detail)


def run_as_non_root(pod: Object) -> Violation | None:
    """Containers that may run as root."""
    spec = pod["spec"]

    def refuses(holder: Object) -> bool:
        return security(holder).get("runAsNonRoot") is False

    setting = setters(refuses(spec), names(spec, refuses))
    if setting:
        return Violation("runAsNonRoot != true", f"{setting} must not set securityContext.runAsNonRoot=false")
    silent = names(spec, lambda container: security(container).get("runAsNonRoot") is None)
    if not silent or security(spec).get("runAsNonRoot"):
        return None
    return Violation("runAsNonRoot != true", f"pod or {counted(silent)} must set securityContext.runAsNonRoot=true")


def run_as_user(pod: Object) -> Violation | None:
    """Containers that run as root."""

    def root(holder: Object) -> bool:
        return security(holder).get("runAsUser") == 0

    setting = setters(root(pod["spec"]), names(pod["spec"], root))
    return Violation("runAsUser=0", f"{setting} must not set runAsUser=0") if setting else None


def required_seccomp(pod: Object) -> Violation | None:
    """Containers without a seccomp profile, or with a forbidden one."""
    forbidden = seccomp_profile(pod)
    if forbidden is not None:
        return forbidden
    spec = pod["spec"]
    silent = names(spec, lambda container: security(container).get("seccompProfile") is None)
    if not silent or (security(spec).get("seccompProfile") is not None and not wrong_seccomp(spec)):
        return None
    detail = f'pod or {counted(silent)} must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
    return Violation("seccompProfile", detail)
