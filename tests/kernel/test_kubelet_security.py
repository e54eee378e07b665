"""Security contexts, sysctls and users of containers, with real processes."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.kernel.kubelet_node import Node, create, eventually, logs, run, running_node, status

from podwire.kube.client import Client
from podwire.kube.resources import Json


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with running_node() as started:
        yield started


SECURE = """
grep -E "^(CapEff|NoNewPrivs|Uid)" /proc/self/status; touch /new 2>&1; echo volume >/data/x && cat /data/x
cat /proc/sys/net/ipv4/tcp_syncookies /proc/sys/kernel/shm_rmid_forced; ip link add dummy9 type dummy 2>&1
echo last words; exit 4
"""


def secure(name: str, script: str, **context: Any) -> Json:
    return {
        "name": name, "image": "busybox", "command": ["sh", "-c", script], "securityContext": context,
        "terminationMessagePolicy": "FallbackToLogsOnError", "env": [{"name": "data-1", "value": "dashed"}],
    }  # fmt: skip


def test_security_context_and_sysctls_apply_to_containers(node: Node) -> None:
    hardened = secure("hard", SECURE, readOnlyRootFilesystem=True, allowPrivilegeEscalation=False, runAsUser=1001)
    hardened["volumeMounts"] = [{"name": "d", "mountPath": "/data"}]
    plain = secure("plain", 'echo "arg0 $0"; env; ' + SECURE)
    sysctls = [{"name": "net.ipv4.tcp_syncookies", "value": "0"}, {"name": "kernel.shm_rmid_forced", "value": "1"}]

    async def body(client: Client) -> None:
        await create(
            client, "secure", hardened, plain, volumes=[{"name": "d", "emptyDir": {}}], restartPolicy="Never",
            securityContext={"sysctls": sysctls},
        )  # fmt: skip

        async def failed() -> bool:
            return (await status(client, "secure")).get("phase") == "Failed"

        await eventually(failed)
        text = await logs(client, "secure", "hard")
        for line in (
            "Uid:\t1001",
            "CapEff:\t0000000000000000",
            "NoNewPrivs:\t1",
            "Read-only file system",
            "volume\n0\n1\n",
        ):
            assert line in text, text
        text = await logs(client, "secure", "plain")
        for line in ("CapEff:\t00000000a80425fb", "NoNewPrivs:\t0", "data-1=dashed", "Operation not permitted"):
            assert line in text, text
        for shown in (await status(client, "secure"))["containerStatuses"]:
            assert shown["state"]["terminated"]["message"].endswith("last words\n")

    run(node, body)


def test_unsafe_sysctls_and_root_users_are_refused(node: Node) -> None:
    async def body(client: Client) -> None:
        unsafe = {"sysctls": [{"name": "kernel.msgmax", "value": "1000"}]}
        await create(client, "unsafe", secure("c", "true"), securityContext=unsafe)
        await create(client, "rooted", secure("c", "true", runAsNonRoot=True))

        async def refused() -> bool:
            rooted = ((await status(client, "rooted")).get("containerStatuses") or [{}])[0].get("state") or {}
            reason = (rooted.get("waiting") or {}).get("reason")
            return (await status(client, "unsafe")).get("reason") == "SysctlForbidden" and reason == (
                "CreateContainerConfigError"
            )

        await eventually(refused)
        unsafe_status = await status(client, "unsafe")
        assert unsafe_status["phase"] == "Failed"
        assert "containerStatuses" not in unsafe_status, "kubectl shows the reason of the pod"

    run(node, body)
