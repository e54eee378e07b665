"""Users and capabilities of containers, and the sysctls of pods."""

from typing import Any

import msgspec
import pytest

from podwire.embedded.kubelet.orders import ProcessUser
from podwire.embedded.kubelet.privileges import CAPABILITIES, check_user, compile_privileges, compile_user
from podwire.embedded.kubelet.sysctls import forbidden_sysctl, pod_sysctls
from podwire.errors import ConfigError
from podwire.model.pod import Pod


def pod(container: dict[str, Any] | None = None, **context: Any) -> Pod:
    body = {"name": "c", "securityContext": container or {}}
    spec = {"containers": [body], "securityContext": context}
    return msgspec.convert({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec}, Pod)


@pytest.mark.parametrize(
    ("context", "has", "lacks"),
    [
        ({}, {"CHOWN", "NET_RAW"}, {"NET_ADMIN", "SYS_ADMIN"}),
        ({"capabilities": {"add": ["NET_ADMIN"], "drop": ["NET_RAW"]}}, {"NET_ADMIN"}, {"NET_RAW"}),
        ({"capabilities": {"drop": ["ALL"], "add": ["CAP_NET_BIND_SERVICE"]}}, {"NET_BIND_SERVICE"}, {"CHOWN"}),
        ({"capabilities": {"add": ["ALL"], "drop": ["SYS_ADMIN"]}}, {"NET_ADMIN"}, {"SYS_ADMIN"}),
    ],
    ids=str,
)
def test_capabilities(context: dict[str, Any], has: set[str], lacks: set[str]) -> None:
    subject = pod(context)
    remaining = compile_privileges(subject.spec.containers[0], subject).capabilities
    assert remaining is not None
    names = {CAPABILITIES[number] for number in remaining}
    assert has <= names
    assert not lacks & names


def test_privileged_container_keeps_everything() -> None:
    subject = pod({"privileged": True})
    assert compile_privileges(subject.spec.containers[0], subject).capabilities is None


def test_container_overrides_the_user_of_its_pod() -> None:
    subject = pod({"runAsUser": 1000}, runAsUser=5, runAsGroup=7, fsGroup=9)
    assert compile_user(subject.spec.containers[0], subject) == ProcessUser(1000, 7, (9,))


@pytest.mark.parametrize(
    ("context", "root", "problem"),
    [
        ({"runAsNonRoot": True}, True, "container has runAsNonRoot and image will run as root"),
        ({"runAsNonRoot": True}, False, ""),
        ({"runAsNonRoot": True, "runAsUser": 0}, False, "container's runAsUser breaks non-root policy"),
        ({"runAsNonRoot": True, "runAsUser": 5}, True, ""),
        ({}, True, ""),
    ],
    ids=str,
)
def test_container_that_must_not_be_root(context: dict[str, Any], root: bool, problem: str) -> None:  # noqa: FBT001
    subject = pod(context)
    result = ""
    try:
        check_user(subject.spec.containers[0], subject, image_runs_as_root=root)
    except ConfigError as failure:
        result = failure.problem
    assert result.startswith(problem)
    assert bool(result) == bool(problem)


def test_only_safe_sysctls_are_allowed() -> None:
    safe = pod(sysctls=[{"name": "net/ipv4/tcp_syncookies", "value": "0"}])
    assert (pod_sysctls(safe), forbidden_sysctl(safe)) == ((("net.ipv4.tcp_syncookies", "0"),), "")
    unsafe = pod(sysctls=[{"name": "kernel.msgmax", "value": "1"}])
    assert forbidden_sysctl(unsafe) == 'forbidden sysctl: "kernel.msgmax" not allowlisted'
