"""The controls of the level baseline.

A control is a function from a pod to what it violates: a reason and a detail, or None. The words are those of
``k8s.io/pod-security-admission/policy``, one file ``check_*.go`` for each control.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

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


class Violation(NamedTuple):
    """What a pod does that its level forbids."""

    reason: str
    detail: str


Control = Callable[[Object], Violation | None]
"""Takes a pod: an object with ``metadata`` and ``spec``."""

_CAPABILITIES = frozenset({
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP",
    "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
})  # fmt: skip
_PROFILES = ("RuntimeDefault", "Localhost")
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
_SECCOMP_POD = "seccomp.security.alpha.kubernetes.io/pod"
_SECCOMP = "container.seccomp.security.alpha.kubernetes.io/"
SYSCTLS: dict[int, frozenset[str]] = {
    0: frozenset({
        "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies",
        "net.ipv4.ping_group_range", "net.ipv4.ip_unprivileged_port_start",
    }),
    27: frozenset({"net.ipv4.ip_local_reserved_ports"}),
    29: frozenset({
        "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
    }),
    32: frozenset({"net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"}),
    37: frozenset({"net.ipv4.tcp_slow_start_after_idle", "net.ipv4.tcp_notsent_lowat"}),
}  # fmt: skip
"""The sysctls that a pod may set, by the minor version that added them."""


def in_user_namespace(pod: Object) -> bool:
    """Whether the pod has user identifiers of its own, so that its root is not the node's."""
    return pod["spec"].get("hostUsers") is False


def apparmor_profile(pod: Object) -> Violation | None:
    """Profiles other than the runtime's default and a local profile."""
    spec = pod["spec"]

    def kind(holder: Object) -> str | None:
        profile = security(holder).get("appArmorProfile")
        return None if profile is None else str(profile.get("type", ""))

    def wrong(holder: Object) -> bool:
        return kind(holder) is not None and kind(holder) not in _PROFILES

    bad = names(spec, wrong)
    setting = [setters(wrong(spec), bad)] if bad or wrong(spec) else []
    values = sorted({kind(holder) or "" for holder in (spec, *containers(spec)) if wrong(holder)})
    annotations = sorted(
        f'{key}="{value}"'
        for key, value in ((pod.get("metadata") or {}).get("annotations") or {}).items()
        if key.startswith(_APPARMOR) and value and value != "runtime/default" and not value.startswith("localhost/")
    )
    if annotations:
        setting.append(plural("annotation", annotations))
        values += annotations
    if not setting:
        return None
    detail = f"{' and '.join(setting)} must not set AppArmor profile type to {listed(values)}"
    return Violation(plural("forbidden AppArmor profile", values), detail)


def added_capabilities(container: Object, allowed: frozenset[str]) -> list[str]:
    """The capabilities that a container adds and that are not in ``allowed``."""
    capabilities = security(container).get("capabilities") or {}
    return [name for name in capabilities.get("add") or () if name not in allowed]


def capabilities(pod: Object) -> Violation | None:
    """Capabilities beyond the default ones of container runtimes."""
    spec = pod["spec"]
    bad = names(spec, lambda container: bool(added_capabilities(container, _CAPABILITIES)))
    if not bad:
        return None
    values = sorted({name for container in containers(spec) for name in added_capabilities(container, _CAPABILITIES)})
    detail = f"{counted(bad)} must not include {listed(values)} in securityContext.capabilities.add"
    return Violation("non-default capabilities", detail)


def host_namespaces(pod: Object) -> Violation | None:
    """The node's network, processes or System V IPC."""
    fields = [f"{field}=true" for field in ("hostNetwork", "hostPID", "hostIPC") if pod["spec"].get(field)]
    return Violation("host namespaces", ", ".join(fields)) if fields else None


def host_path_volumes(pod: Object) -> Violation | None:
    """Folders of the node."""
    names = [volume["name"] for volume in pod["spec"].get("volumes") or () if volume.get("hostPath") is not None]
    return Violation("hostPath volumes", counted(names, "volume")) if names else None


def host_ports(pod: Object) -> Violation | None:
    """Ports of the node."""

    def ports(container: Object) -> list[str]:
        return [str(port["hostPort"]) for port in container.get("ports") or () if port.get("hostPort")]

    spec = pod["spec"]
    bad = names(spec, lambda container: bool(ports(container)))
    if not bad:
        return None
    values = sorted({port for container in containers(spec) for port in ports(container)})
    use = "uses" if len(bad) == 1 else "use"
    return Violation("hostPort", f"{counted(bad)} {use} {plural('hostPort', values)} {', '.join(values)}")


def host_probes(pod: Object) -> Violation | None:
    """Probes and lifecycle hooks that connect to a host of their own choice."""
    spec = pod["spec"]
    bad = sorted(set(names(spec, lambda container: bool(_probed_hosts(container)))))
    if not bad:
        return None
    values = sorted({host for container in containers(spec) for host in _probed_hosts(container)})
    use = "uses" if len(bad) == 1 else "use"
    noun = plural("probe or lifecycle host", values)
    return Violation("probe or lifecycle host", f"{counted(bad)} {use} {noun} {listed(values)}")


def _probed_hosts(container: Object) -> list[str]:
    lifecycle = container.get("lifecycle") or {}
    handlers = [container.get(field) for field in ("livenessProbe", "readinessProbe", "startupProbe")]
    handlers += [lifecycle.get(field) for field in ("postStart", "preStop")]
    actions = [(handler or {}).get(field) or {} for handler in handlers for field in ("httpGet", "tcpSocket")]
    return [action["host"] for action in actions if action.get("host")]


def privileged(pod: Object) -> Violation | None:
    """Containers with all rights on the node."""
    bad = names(pod["spec"], lambda container: bool(security(container).get("privileged")))
    if not bad:
        return None
    return Violation("privileged", f"{counted(bad)} must not set securityContext.privileged=true")


def proc_mount(pod: Object) -> Violation | None:
    """A /proc without the masks of container runtimes."""

    def mount(container: Object) -> str:
        return str(security(container).get("procMount") or "Default")

    bad = names(pod["spec"], lambda container: mount(container) != "Default")
    if not bad:
        return None
    values = sorted({mount(container) for container in containers(pod["spec"])} - {"Default"})
    return Violation("procMount", f"{counted(bad)} must not set securityContext.procMount to {listed(values)}")


def selinux_options(minor: int) -> Control:
    """The control on SELinux users, roles and types, for a minor version."""
    allowed = {"", "container_t", "container_init_t", "container_kvm_t"} | (
        {"container_engine_t"} if minor > 30 else set()
    )

    def options(holder: Object) -> Object:
        return security(holder).get("seLinuxOptions") or {}

    def wrong(holder: Object) -> bool:
        options_of = options(holder)
        return options_of.get("type", "") not in allowed or bool(options_of.get("user") or options_of.get("role"))

    def control(pod: Object) -> Violation | None:
        spec = pod["spec"]
        setting = setters(wrong(spec), names(spec, wrong))
        if not setting:
            return None
        holders = [options(holder) for holder in (spec, *containers(spec))]
        types = sorted({holder.get("type", "") for holder in holders} - allowed)
        data = [f"{plural('type', types)} {listed(types)}"] if types else []
        data += [
            f"{field} may not be set" for field in ("user", "role") if any(holder.get(field) for holder in holders)
        ]
        return Violation("seLinuxOptions", f"{setting} set forbidden securityContext.seLinuxOptions: {'; '.join(data)}")

    return control


def seccomp_annotations(pod: Object) -> Violation | None:
    """Annotations with another seccomp profile than the runtime's or a local profile; the form before 1.19."""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    keys = {_SECCOMP_POD, *(_SECCOMP + container["name"] for container in containers(pod["spec"]))}
    refused = sorted(
        f'{key}="{annotations[key]}"'
        for key in keys & annotations.keys()
        if annotations[key] not in ("runtime/default", "docker/default")
        and not annotations[key].startswith("localhost/")
    )
    if not refused:
        return None
    return Violation("seccompProfile", f"forbidden {plural('annotation', refused)} {', '.join(refused)}")


def wrong_seccomp(holder: Object) -> bool:
    """Whether a pod's spec or a container names a forbidden seccomp profile."""
    profile = security(holder).get("seccompProfile")
    return profile is not None and profile.get("type") not in _PROFILES


def seccomp_profile(pod: Object) -> Violation | None:
    """Seccomp profiles other than the runtime's default and a local profile."""
    spec = pod["spec"]
    setting = setters(wrong_seccomp(spec), names(spec, wrong_seccomp))
    if not setting:
        return None
    holders: Iterator[Any] = (holder for holder in (spec, *containers(spec)) if wrong_seccomp(holder))
    values = sorted({security(holder)["seccompProfile"].get("type", "") for holder in holders})
    return Violation(
        "seccompProfile", f"{setting} must not set securityContext.seccompProfile.type to {listed(values)}"
    )


def sysctls(minor: int) -> Control:
    """The control on sysctls, for a minor version."""
    allowed = frozenset().union(*(names for since, names in SYSCTLS.items() if since <= minor))

    def control(pod: Object) -> Violation | None:
        sysctls = security(pod["spec"]).get("sysctls") or ()
        forbidden = [sysctl["name"] for sysctl in sysctls if sysctl["name"] not in allowed]
        return Violation("forbidden sysctls", ", ".join(forbidden)) if forbidden else None

    return control


def windows_host_process(pod: Object) -> Violation | None:
    """Windows containers with the rights of the node."""

    def wrong(holder: Object) -> bool:
        return bool((security(holder).get("windowsOptions") or {}).get("hostProcess"))

    setting = setters(wrong(pod["spec"]), names(pod["spec"], wrong))
    if not setting:
        return None
    return Violation("hostProcess", f"{setting} must not set securityContext.windowsOptions.hostProcess=true")
