"""A list of CNI plugins on a node, run as libcni runs them: results are handed on, DEL goes backwards."""

import json
import os
import subprocess
from typing import Any

from tests.kernel.cni_node import NodeAgent
from tests.kernel.reference_plugins import PLUGINS

from podwire.cni import program

OWN = "podwire-cni"


class PluginChain:
    """A network configuration list and the results of its pods."""

    def __init__(self, node: NodeAgent, *plugins: dict[str, Any], version: str = "1.0.0") -> None:
        self.node = node
        self.plugins = plugins
        self.version = version
        self.path = PLUGINS
        self.own = {OWN}
        """The types that podwire's program answers."""
        self.results: dict[str, dict[str, Any]] = {}

    def run(self, command: str, name: str, conf: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Runs one plugin; exit status and standard output."""
        own = conf["type"] in self.own
        environment = {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": f"c-{name}",
            "CNI_NETNS": str(self.node.pods / name),
            "CNI_IFNAME": "eth0",
            "CNI_PATH": self.path,
            "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name}",
            "PODWIRE_CNI_SOCKET": str(self.node.socket),
            "PATH": os.environ["PATH"],
        }
        done = subprocess.run(
            ["nsenter", f"--net={self.node.place}", str(program.path()) if own else f"{PLUGINS}/{conf['type']}"],
            env=environment,
            input=json.dumps({"cniVersion": self.version, "name": "podwire", **conf}).encode(),
            capture_output=True,
            check=False,
        )
        return done.returncode, json.loads(done.stdout) if done.stdout else {}

    def add(self, name: str, **runtime: Any) -> dict[str, Any]:
        """Adds a pod; returns the result of the last plugin."""
        if not (self.node.pods / name).exists():
            self.node.pod(name)
        result: dict[str, Any] = {}
        for conf in self.plugins:
            previous = {"prevResult": result} if result else {}
            status, answer = self.run("ADD", name, conf | previous | {"runtimeConfig": runtime})
            assert status == 0, (conf["type"], answer)
            result = answer
        self.results[name] = result
        return result

    def check(self, name: str, **runtime: Any) -> None:
        """Runs CHECK of all plugins, which must succeed."""
        for conf in self.plugins:
            more = {"prevResult": self.results[name], "runtimeConfig": runtime}
            status, answer = self.run("CHECK", name, conf | more)
            assert status == 0, (conf["type"], answer)

    def delete(self, name: str, **runtime: Any) -> None:
        """Runs DEL of all plugins, the last one first."""
        for conf in reversed(self.plugins):
            more = {"prevResult": self.results[name], "runtimeConfig": runtime}
            status, answer = self.run("DEL", name, conf | more)
            assert status == 0, (conf["type"], answer)
