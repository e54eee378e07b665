"""Pods that run a command on a node as the agent would."""

from typing import Any

import pytest

from podwire.errors import ConfigError
from podwire.install.agentpods import agent_pod, without_nodes

AGENT: dict[str, Any] = {
    "name": "agent",
    "image": "podwire:1",
    "args": ["agent", "--config", "/etc/podwire/agent.yaml"],
    "env": [{"name": "NODE_NAME"}],
    "ports": [{"containerPort": 9440}],
    "livenessProbe": {},
    "volumeMounts": [{"name": "config", "mountPath": "/etc/podwire"}],
}
AGENTS: dict[str, Any] = {
    "spec": {
        "template": {
            "spec": {
                "hostNetwork": True,
                "nodeSelector": {"a": "b"},
                "affinity": {},
                "containers": [AGENT],
                "volumes": [],
            }
        }
    }
}


def test_pod_of_a_command_is_like_the_agents() -> None:
    pod = agent_pod(AGENTS, "podwire-node", "node-1", ("preflight",))
    (container,) = pod["spec"]["containers"]
    assert container == {
        "name": "agent",
        "image": "podwire:1",
        "args": ["preflight", "--config", "/etc/podwire/agent.yaml"],
        "env": AGENT["env"],
        "volumeMounts": AGENT["volumeMounts"],
    }
    assert (pod["metadata"]["name"], pod["spec"]["nodeName"]) == ("podwire-node-node-1", "node-1")
    assert pod["spec"]["hostNetwork"] and not {"nodeSelector", "affinity"} & pod["spec"].keys()
    assert AGENT["args"][0] == "agent", "the template stays as it is"


def test_agents_that_run_on_no_node_keep_their_template() -> None:
    (selector,) = without_nodes()["spec"]["template"]["spec"].values()
    assert list(selector.values()) == ["never"]


def test_daemonset_of_another_program_is_refused() -> None:
    other = {"spec": {"template": {"spec": {"containers": [{"name": "other"}]}}}}
    with pytest.raises(ConfigError, match="expected a container named agent"):
        agent_pod(other, "podwire-node", "node-1", ("preflight",))
