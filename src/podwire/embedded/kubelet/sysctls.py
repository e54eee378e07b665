"""The sysctls of a pod, and the check that a pod may set them. Pure.

Safe sysctls belong to a namespace of the pod and cannot disturb other pods. All others are refused: the pod fails with
the reason SysctlForbidden. Source: kubernetes pkg/kubelet/sysctl (safe_sysctls.go, allowlist.go).
"""

from podwire.model.pod import Pod

_SAFE = frozenset({
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start", "net.ipv4.ip_local_reserved_ports", "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
})  # fmt: skip


def pod_sysctls(pod: Pod) -> tuple[tuple[str, str], ...]:
    """Name, with dots, and value of each sysctl of a pod."""
    listed = (pod.spec.security_context or {}).get("sysctls") or ()
    return tuple((str(item.get("name", "")).replace("/", "."), str(item.get("value", ""))) for item in listed)


def forbidden_sysctl(pod: Pod) -> str:
    """Why a pod is refused because of its sysctls; empty when it is not."""
    spec = pod.spec
    for name, _ in pod_sysctls(pod):
        if name not in _SAFE:
            return f'forbidden sysctl: "{name}" not allowlisted'
        if spec.host_network and name.startswith("net."):
            return f'forbidden sysctl: "{name}" not allowed with host net enabled'
        if spec.host_ipc and name.startswith("kernel."):
            return f'forbidden sysctl: "{name}" not allowed with host ipc enabled'
    return ""
