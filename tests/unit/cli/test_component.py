"""How the agent is told what to be: its own configuration or kube-proxy's."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from podwire.agent import daemon
from podwire.agent.config import AgentConfig
from podwire.cli.component import agent
from podwire.errors import ConfigError
from podwire.runtime.clock import Clock

KUBE_PROXY = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[AgentConfig]:
    """The configurations that agents were started with."""
    agent_configs: list[AgentConfig] = []

    async def run(config: AgentConfig, clock: Clock) -> None:
        agent_configs.append(config)

    monkeypatch.setattr(daemon, "run", run)
    return agent_configs


def test_in_place_of_kube_proxy(tmp_path: Path, started: list[AgentConfig]) -> None:
    file = tmp_path / "config.conf"
    file.write_text(KUBE_PROXY + "mode: iptables\nclusterCIDR: 10.0.0.0/8\niptables: {syncPeriod: 5s}\n")
    arguments = ["--kube-proxy-config", str(file), "--hostname-override", "Node-7", "--kubeconfig", "/etc/kubeconfig"]
    done = CliRunner().invoke(agent, arguments)
    assert done.exit_code == 0, done.output
    assert done.stderr == f"podwire: {file}: ignored iptables.syncPeriod: podwire does not use it\n"
    (config,) = started
    assert (config.node_name, config.kubeconfig, config.parts) == ("node-7", "/etc/kubeconfig", ("proxy",))
    assert config.proxy["mode"] == "iptables"


def test_its_own_configuration(tmp_path: Path, started: list[AgentConfig]) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("nodeName: node-1\nparts: [proxy]\nproxy: {conntrack: {udpTimeout: 1m}}\n")
    done = CliRunner().invoke(agent, ["--config", str(file)])
    assert (done.exit_code, done.output) == (0, "")
    assert [config.node_name for config in started] == ["node-1"]


@pytest.mark.parametrize("arguments", [[], ["--config", "a", "--kube-proxy-config", "b"]])
def test_it_is_one_of_them(arguments: list[str], started: list[AgentConfig]) -> None:
    done = CliRunner().invoke(agent, arguments)
    assert done.exit_code == 2
    assert "expected either --config or --kube-proxy-config" in done.output
    assert started == []


def test_a_file_that_is_not_there_is_named(started: list[AgentConfig]) -> None:
    done = CliRunner().invoke(agent, ["--kube-proxy-config", "/nonexistent/config.conf"])
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception) == "/nonexistent/config.conf: No such file or directory"
    assert started == []
