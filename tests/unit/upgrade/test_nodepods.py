"""The pods of an upgrade on nodes, with the image of the agents or a named one."""

from typing import Any

import pytest

from podwire.errors import ConfigError
from podwire.upgrade import nodepods
from podwire.upgrade.nodepods import NodeFolders, ProbeImage

AGENTS: dict[str, Any] = {
    "spec": {
        "template": {
            "spec": {
                "imagePullSecrets": [{"name": "pull"}],
                "containers": [{"name": "agent", "image": "podwire:1", "imagePullPolicy": "Never", "command": ["pw"]}],
                "volumes": [
                    {"name": "cni-conf", "hostPath": {"path": "/own/net.d"}},
                    {"name": "config", "configMap": {"name": "podwire-agent"}},
                ],
            }
        }
    }
}


def test_the_image_is_named_or_that_of_the_agents() -> None:
    own = ProbeImage(image="podwire:1", command=("pw",), pull_policy="Never", pull_secrets=("pull",))
    assert nodepods.image_of(AGENTS, "") == own
    assert nodepods.image_of(None, "mirror/podwire:2") == ProbeImage(image="mirror/podwire:2")
    with pytest.raises(ConfigError, match="--node-image: the cluster has no podwire agents; name an image"):
        nodepods.image_of(None, "")


def test_directories_are_those_that_the_agents_mount() -> None:
    named = NodeFolders(conf_dir="/a", bin_dir="/b")
    assert nodepods.folders_of(AGENTS, named) == NodeFolders(conf_dir="/own/net.d", bin_dir="/b")
    assert nodepods.folders_of(None, named) == named


def test_a_pod_on_a_node_has_few_rights() -> None:
    pod = nodepods.node_pod(nodepods.image_of(AGENTS, ""), "node-1", NodeFolders(), ["read"])
    (container,) = pod["spec"]["containers"]
    assert container["args"] == ["upgrade", "node", "read"] and pod["spec"]["hostNetwork"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN", "NET_RAW"]}
    paths = [volume["hostPath"]["path"] for volume in pod["spec"]["volumes"]]
    assert paths == ["/etc/cni/net.d", "/opt/cni/bin", "/run/xtables.lock"]
    assert pod["spec"]["imagePullSecrets"] == [{"name": "pull"}]
