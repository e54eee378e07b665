"""What each level of Pod Security forbids, and the words for it."""

from typing import Any

import pytest

from podwire.embedded.apiserver.admission.podsecurity.evaluate import BASELINE, RESTRICTED, describe, violations
from podwire.embedded.apiserver.admission.podsecurity.labels import LATEST, LevelVersion

Object = dict[str, Any]

SAFE: Object = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def container(name: str = "c", **security: Any) -> Object:
    return {"name": name, "image": "i", "securityContext": security}


def pod(*containers: Object, annotations: Object | None = None, **spec: Any) -> Object:
    return {"metadata": {"annotations": annotations or {}}, "spec": {"containers": list(containers), **spec}}


def violations_text(pod: Object, level: str, minor: int = LATEST) -> str:
    return describe(violations(LevelVersion(level, minor), pod))


PROBED = {
    "name": "c",
    "livenessProbe": {"httpGet": {"host": "h"}},
    "lifecycle": {"preStop": {"tcpSocket": {"host": "g"}}},
}
HOST_PORTS = {"name": "c", "ports": [{"hostPort": 80}, {"hostPort": 443}, {"containerPort": 1}]}

CASES: list[tuple[str, Object, str]] = [
    ("host namespaces", pod(container(), hostNetwork=True, hostPID=True, hostIPC=True),
     "host namespaces (hostNetwork=true, hostPID=true, hostIPC=true)"),
    ("privileged", pod(container("a", privileged=True), container("b", privileged=True)),
     'privileged (containers "a", "b" must not set securityContext.privileged=true)'),
    ("capabilities", pod(container(capabilities={"add": ["NET_RAW", "CHOWN"]})),
     'non-default capabilities (container "c" must not include "NET_RAW" in securityContext.capabilities.add)'),
    ("hostPath", pod(container(), volumes=[{"name": "v", "hostPath": {"path": "/"}}, {"name": "w", "emptyDir": {}}]),
     'hostPath volumes (volume "v")'),
    ("host ports", pod(HOST_PORTS), 'hostPort (container "c" uses hostPorts 443, 80)'),
    ("probes", pod(PROBED), 'probe or lifecycle host (container "c" uses probe or lifecycle hosts "g", "h")'),
    ("AppArmor", pod(container(appArmorProfile={"type": "Unconfined"})),
     'forbidden AppArmor profile (container "c" must not set AppArmor profile type to "Unconfined")'),
    ("AppArmor annotation", pod(container(), annotations={"container.apparmor.security.beta.kubernetes.io/c": "x"}),
     "forbidden AppArmor profile (annotation must not set AppArmor profile type to "
     '"container.apparmor.security.beta.kubernetes.io/c="x"")'),
    ("SELinux", pod(container(seLinuxOptions={"type": "spc_t", "user": "u"}), securityContext={
        "seLinuxOptions": {"role": "r"}}),
     'seLinuxOptions (pod and container "c" set forbidden securityContext.seLinuxOptions: type "spc_t"; '
     "user may not be set; role may not be set)"),
    ("procMount", pod(container(procMount="Unmasked")),
     'procMount (container "c" must not set securityContext.procMount to "Unmasked")'),
    ("seccomp", pod(container(), securityContext={"seccompProfile": {"type": "Unconfined"}}),
     'seccompProfile (pod must not set securityContext.seccompProfile.type to "Unconfined")'),
    ("sysctls", pod(container(), securityContext={"sysctls": [{"name": "kernel.msgmax"}, {
        "name": "net.ipv4.tcp_rmem"}]}),
     "forbidden sysctls (kernel.msgmax)"),
    ("host process", pod(container(windowsOptions={"hostProcess": True}), securityContext={
        "windowsOptions": {"hostProcess": True}}),
     'hostProcess (pod and container "c" must not set securityContext.windowsOptions.hostProcess=true)'),
]  # fmt: skip


@pytest.mark.parametrize(("name", "pod", "expected"), CASES, ids=[case[0] for case in CASES])
def test_baseline_forbids(name: str, pod: Object, expected: str) -> None:
    assert violations_text(pod, "baseline") == expected
    assert violations_text(pod, "privileged") == ""


RESTRICTED_CASES: list[tuple[str, Object, str]] = [
    ("nothing set", pod(container()),
     'allowPrivilegeEscalation != false (container "c" must set securityContext.allowPrivilegeEscalation=false), '
     'unrestricted capabilities (container "c" must set securityContext.capabilities.drop=["ALL"]), '
     'runAsNonRoot != true (pod or container "c" must set securityContext.runAsNonRoot=true), '
     'seccompProfile (pod or container "c" must set securityContext.seccompProfile.type to "RuntimeDefault" or '
     '"Localhost")'),
    ("safe", pod(container(**SAFE)), ""),
    ("safe by the pod", pod(
        container(allowPrivilegeEscalation=False, capabilities={"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}),
        securityContext={"runAsNonRoot": True, "seccompProfile": {"type": "Localhost"}}), ""),
    ("volumes", pod(container(**SAFE), volumes=[
        {"name": "a", "nfs": {}}, {"name": "b", "hostPath": {}}, {"name": "c", "image": {}}, {"name": "d"}]),
     'restricted volume types (volumes "a", "b", "d" use restricted volume types "hostPath", "nfs", "unknown")'),
    ("root", pod(container(**SAFE, runAsUser=0)), 'runAsUser=0 (container "c" must not set runAsUser=0)'),
    ("may be root", pod(container(**{**SAFE, "runAsNonRoot": False})),
     'runAsNonRoot != true (container "c" must not set securityContext.runAsNonRoot=false)'),
    ("adds", pod(container(**{**SAFE, "capabilities": {"drop": ["ALL"], "add": ["CHOWN"]}})),
     'unrestricted capabilities (container "c" must not include "CHOWN" in securityContext.capabilities.add)'),
    ("user namespace", pod(container(**{**SAFE, "runAsNonRoot": False, "runAsUser": 0}), hostUsers=False), ""),
    ("masks of a user namespace", pod(container(**SAFE, procMount="Unmasked"), hostUsers=False),
     'procMount (container "c" must not set securityContext.procMount to "Unmasked")'),
    ("Windows", pod(container(runAsNonRoot=True), os={"name": "windows"}), ""),
    ("init and ephemeral", pod(container(**SAFE), initContainers=[container("i")], ephemeralContainers=[
        container("e", **SAFE, privileged=True)], securityContext={
            "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}),
     'privileged (container "e" must not set securityContext.privileged=true), '
     'allowPrivilegeEscalation != false (container "i" must set securityContext.allowPrivilegeEscalation=false), '
     'unrestricted capabilities (container "i" must set securityContext.capabilities.drop=["ALL"])'),
]  # fmt: skip


@pytest.mark.parametrize(("name", "pod", "expected"), RESTRICTED_CASES, ids=[case[0] for case in RESTRICTED_CASES])
def test_restricted_forbids(name: str, pod: Object, expected: str) -> None:
    assert violations_text(pod, "restricted") == expected


@pytest.mark.parametrize(
    ("pod", "level", "before", "since"),
    [
        (pod(container(), securityContext={"sysctls": [{"name": "net.ipv4.tcp_rmem"}]}), "baseline",
         (31, "forbidden sysctls (net.ipv4.tcp_rmem)"), (32, "")),
        (pod(PROBED), "baseline", (33, ""), (34, CASES[5][2])),
        (pod(container(seLinuxOptions={"type": "container_engine_t"})), "baseline",
         (30, 'seLinuxOptions (container "c" set forbidden securityContext.seLinuxOptions: type "container_engine_t")'),
         (31, "")),
        (pod(container(), annotations={"seccomp.security.alpha.kubernetes.io/pod": "x"}), "baseline",
         (18, 'seccompProfile (forbidden annotation seccomp.security.alpha.kubernetes.io/pod="x")'), (19, "")),
        (pod(container(procMount="Unmasked"), hostUsers=False), "baseline", (34, CASES[9][2]), (35, "")),
        (pod(container(**SAFE, runAsUser=0)), "restricted", (22, ""), (23, RESTRICTED_CASES[4][2])),
    ],
)  # fmt: skip
def test_versions_change_controls(pod: Object, level: str, before: tuple[int, str], since: tuple[int, str]) -> None:
    for minor, expected in (before, since):
        assert violations_text(pod, level, minor) == expected


def test_messages_name_controls_in_order() -> None:
    assert list(BASELINE) == sorted(BASELINE)
    assert list(RESTRICTED) == sorted(RESTRICTED)
