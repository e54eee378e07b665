"""The controls of a level at a version, and the violations of a pod.

The table is that of ``k8s.io/pod-security-admission/policy``: each control by its name with the minor versions at which
it appeared or changed. ``restricted`` has the controls of ``baseline``, except those that a stricter control replaces.
"""

from collections.abc import Callable, Mapping
from functools import cache

from podwire.embedded.apiserver.admission.podsecurity import baseline, restricted
from podwire.embedded.apiserver.admission.podsecurity.baseline import Control, Violation, in_user_namespace
from podwire.embedded.apiserver.admission.podsecurity.containers import Object
from podwire.embedded.apiserver.admission.podsecurity.labels import LevelVersion


def _unless(exempt: Callable[[Object], bool], control: Control) -> Control:
    return lambda pod: None if exempt(pod) else control(pod)


BASELINE: Mapping[str, Mapping[int, Control]] = {
    "appArmorProfile": {0: baseline.apparmor_profile},
    "capabilities_baseline": {0: baseline.capabilities},
    "hostNamespaces": {0: baseline.host_namespaces},
    "hostPathVolumes": {0: baseline.host_path_volumes},
    "hostPorts": {0: baseline.host_ports},
    "hostProbesAndHostLifecycle": {34: baseline.host_probes},
    "privileged": {0: baseline.privileged},
    "procMount": {0: baseline.proc_mount, 35: _unless(in_user_namespace, baseline.proc_mount)},
    "seLinuxOptions": {0: baseline.selinux_options(0), 31: baseline.selinux_options(31)},
    "seccompProfile_baseline": {0: baseline.seccomp_annotations, 19: baseline.seccomp_profile},
    "sysctls": {minor: baseline.sysctls(minor) for minor in baseline.SYSCTLS},
    "windowsHostProcess": {0: baseline.windows_host_process},
}
"""The controls of ``baseline`` by name, in the order of messages; each by the minor version since which it holds."""

RESTRICTED: Mapping[str, Mapping[int, Control]] = {
    "allowPrivilegeEscalation": {
        8: restricted.allow_privilege_escalation,
        25: _unless(restricted.on_windows, restricted.allow_privilege_escalation),
    },
    "capabilities_restricted": {
        22: restricted.capabilities,
        25: _unless(restricted.on_windows, restricted.capabilities),
    },
    "procMount_restricted": {35: baseline.proc_mount},
    "restrictedVolumes": {0: restricted.volume_types},
    "runAsNonRoot": {0: restricted.run_as_non_root, 35: _unless(in_user_namespace, restricted.run_as_non_root)},
    "runAsUser": {23: restricted.run_as_user, 35: _unless(in_user_namespace, restricted.run_as_user)},
    "seccompProfile_restricted": {
        19: restricted.required_seccomp,
        25: _unless(restricted.on_windows, restricted.required_seccomp),
    },
}
"""The controls that ``restricted`` adds."""

_REPLACES = {
    "capabilities_restricted": "capabilities_baseline",
    "procMount_restricted": "procMount",
    "restrictedVolumes": "hostPathVolumes",
    "seccompProfile_restricted": "seccompProfile_baseline",
}


@cache
def controls(policy: LevelVersion) -> tuple[Control, ...]:
    """The controls of a level, in the order in which messages name them."""
    if policy.level == "privileged":
        return ()
    baseline = _at(BASELINE, policy.minor)
    if policy.level == "restricted":
        added = _at(RESTRICTED, policy.minor)
        for name in added:
            baseline.pop(_REPLACES.get(name, ""), None)
        baseline |= added
    return tuple(baseline.values())


def _at(table: Mapping[str, Mapping[int, Control]], minor: int) -> dict[str, Control]:
    """The controls that hold at a minor version."""
    return {
        name: versions[max(since for since in versions if since <= minor)]
        for name, versions in table.items()
        if min(versions) <= minor
    }


def violations(policy: LevelVersion, pod: Object) -> list[Violation]:
    """What the pod does that the level forbids; empty when the pod may run."""
    return [violation for control in controls(policy) if (violation := control(pod)) is not None]


def describe(broken: list[Violation]) -> str:
    """The violations with their details, as Kubernetes lists them."""
    return ", ".join(f"{reason} ({detail})" if detail else reason for reason, detail in broken)
