"""A kubectl before 1.31, which speaks only SPDY, gets an error that says what is needed."""

from typing import Any

import pytest
from tests.e2e.driver import Cluster, shell_pod

SPDY: dict[str, Any] = {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false", "KUBECTL_PORT_FORWARD_WEBSOCKETS": "false"}


@pytest.mark.parametrize("command", ["exec box -- true", "attach box", "port-forward pod/box :80"])
def test_old_kubectl_gets_a_hint(cluster: Cluster, namespace: str, command: str) -> None:
    cluster.apply(shell_pod("box", "sleep 600"), "-n", namespace)
    cluster.kubectl("wait", "--for=condition=Ready", "pod/box", "-n", namespace, "--timeout=90s")
    result = cluster.run(["kubectl", "-n", namespace, *command.split()], **SPDY)
    assert result.returncode == 1
    assert "exec, attach and port-forward need WebSockets (kubectl 1.31 or newer)" in result.stderr
