"""The rights of a container's program: user, capabilities and new privileges, from the security contexts. Pure.

A container without ``privileged`` keeps the capabilities that container runtimes keep by default, plus ``add``, minus
``drop``. Source: capabilities(7), linux/capability.h; containerd's defaultUnixCaps; kubernetes
pkg/kubelet/kuberuntime/security_context.go.
"""

from collections.abc import Mapping
from typing import Any

from podwire.embedded.kubelet.orders import Privileges, ProcessUser
from podwire.errors import ConfigError
from podwire.model.pod import Container, Pod

CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
    "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
    "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
    "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
    "CHECKPOINT_RESTORE",
)  # fmt: skip
"""The names without ``CAP_``; the number of a capability is its place."""

_DEFAULT = frozenset({
    "CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP", "SETPCAP",
    "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE",
})  # fmt: skip


def security_context(container: Container, pod: Pod) -> Mapping[str, Any]:
    """The security context of a container: its own fields, then those of the pod."""
    return {**(pod.spec.security_context or {}), **(container.security_context or {})}


def compile_user(container: Container, pod: Pod) -> ProcessUser | None:
    """The user of a container; None when neither user nor group is set."""
    merged = security_context(container, pod)
    if merged.get("runAsUser") is None and merged.get("runAsGroup") is None:
        return None
    groups = [int(g) for g in merged.get("supplementalGroups") or ()]
    if merged.get("fsGroup") is not None:
        groups.append(int(merged["fsGroup"]))
    return ProcessUser(int(merged.get("runAsUser") or 0), int(merged.get("runAsGroup") or 0), tuple(groups))


def compile_privileges(container: Container, pod: Pod) -> Privileges:
    """The privileges of a container."""
    merged = security_context(container, pod)
    if merged.get("privileged"):
        return Privileges()
    change = merged.get("capabilities") or {}
    added, dropped = _names(change.get("add")), _names(change.get("drop"))
    granted = (frozenset(CAPABILITIES) if "ALL" in added else _DEFAULT) if "ALL" not in dropped else frozenset()
    granted = (granted | (added - {"ALL"})) - (dropped - {"ALL"})
    numbers = tuple(number for number, name in enumerate(CAPABILITIES) if name in granted)
    return Privileges(numbers, merged.get("allowPrivilegeEscalation") is False)


def _names(listed: Any) -> frozenset[str]:
    return frozenset(str(name).upper().removeprefix("CAP_") for name in listed or ())


def check_user(container: Container, pod: Pod, *, image_runs_as_root: bool) -> None:
    """Refuses a container that would run as root although ``runAsNonRoot`` forbids it.

    ``image_runs_as_root``: the image is known to set no user. The user of an image that a stand-in replaces is unknown.

    Raises: ConfigError.
    """
    merged = security_context(container, pod)
    if not merged.get("runAsNonRoot"):
        return
    meta = pod.metadata
    where = f'(pod: "{meta.name}_{meta.namespace}({meta.uid})", container: {container.name})'
    user = merged.get("runAsUser")
    if user == 0:
        raise ConfigError("securityContext", "runAsUser", f"container's runAsUser breaks non-root policy {where}")
    if user is None and image_runs_as_root:
        problem = f"container has runAsNonRoot and image will run as root {where}"
        raise ConfigError("securityContext", "runAsNonRoot", problem)
