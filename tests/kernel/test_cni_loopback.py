"""podwire as the plugin ``loopback``, beside the reference plugin."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from tests.kernel.cni_node import NodeAgent, inside, ping
from tests.kernel.reference_plugins import PLUGINS

from podwire.cni import program
from podwire.kernel import netns

needs_plugins = pytest.mark.skipif(
    not shutil.which("loopback", path=PLUGINS), reason="needs containernetworking-plugins"
)
CONF = {"name": "cni-loopback", "type": "loopback"}


def call(node: NodeAgent, plugin: str, command: str, pod: str, **conf: Any) -> tuple[int, dict[str, Any]]:
    environment = {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": f"c-{pod}",
        "CNI_NETNS": str(node.pods / pod),
        "CNI_IFNAME": "lo",
        "CNI_PATH": PLUGINS,
        "PODWIRE_CNI_SOCKET": str(node.socket),
        "PATH": os.environ["PATH"],
    }
    arguments = ["nsenter", f"--net={node.place}", plugin]
    document = json.dumps({"cniVersion": "1.0.0", **CONF, **conf}).encode()
    done = subprocess.run(arguments, env=environment, input=document, capture_output=True, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else {}


def bare(node: NodeAgent, name: str) -> None:
    """A namespace of a pod whose ``lo`` is down."""
    node.pods.mkdir(exist_ok=True)
    netns.create(node.pods / name)


@needs_plugins
@pytest.mark.parametrize("version", ["0.3.1", "0.4.0", "1.0.0"])
def test_answers_are_those_of_the_reference_plugin(make: Callable[..., NodeAgent], version: str) -> None:
    node = make("10.244.1.0/24")
    answers = {}
    for plugin in (str(program.path()), f"{PLUGINS}/loopback"):
        bare(node, "a")
        steps: list[tuple[int, dict[str, Any]]] = []
        status, result = call(node, plugin, "ADD", "a", cniVersion=version)
        steps.append((status, result))
        assert ping(node.pods / "a", "127.0.0.1") and ping(node.pods / "a", "::1")
        if version != "0.3.1":
            steps.append(call(node, plugin, "CHECK", "a", cniVersion=version, prevResult=result))
            inside(node.pods / "a", "ip", "link", "set", "lo", "down")
            steps.append((call(node, plugin, "CHECK", "a", cniVersion=version, prevResult=result)[0], {}))
        steps.append(call(node, plugin, "DEL", "a", cniVersion=version))
        steps.append(call(node, plugin, "DEL", "a", cniVersion=version))
        netns.delete(node.pods / "a")
        steps.append(call(node, plugin, "DEL", "a", cniVersion=version))
        answers[plugin] = steps
    own, reference = answers.values()
    for ip in own[0][1]["ips"]:
        ip.pop("version", "")  # Required until 0.4.0; the reference plugin leaves it out.
    assert own == reference


def test_loopback_holds_no_address_of_the_node(make: Callable[..., NodeAgent]) -> None:
    node = make("10.244.1.0/24")
    bare(node, "a")
    status, result = call(node, str(program.path()), "ADD", "a", prevResult={"cniVersion": "1.0.0", "ips": []})
    assert (status, result.get("ips", [])) == (0, [])
    assert ping(node.pods / "a", "127.0.0.1")
    assert node.service.leases.held == {}
    status, failure = call(node, str(program.path()), "ADD", "missing")
    assert (status, failure["code"]) == (1, 8)
    assert call(node, str(program.path()), "VERSION", "a")[0] == 0
