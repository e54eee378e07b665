"""Pods that the reference plugins ``bridge`` and ``host-local`` wire in a node's namespace, as a runtime calls them."""

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.kernel.reference_plugins import BRIDGE, PLUGINS

from podwire.kernel import netns

NETWORK = "plain"


class BridgeRuntime:
    """The plugin ``bridge`` with addresses of ``host-local`` on one node."""

    def __init__(self, node: Path, pods: Path, directory: Path, *subnets: str) -> None:
        """``directory`` is the ``dataDir`` of host-local; its folder :data:`NETWORK` has the addresses."""
        self.node = node
        self.pods = pods
        ranges = [[{"subnet": subnet}] for subnet in subnets]
        paths = [{"dst": "::/0" if ":" in subnet else "0.0.0.0/0"} for subnet in subnets]
        self.conf: dict[str, Any] = {
            "cniVersion": "1.0.0",
            "name": NETWORK,
            "type": "bridge",
            "bridge": BRIDGE,
            "isGateway": True,
            "ipMasq": True,
            "hairpinMode": True,
            "ipam": {"type": "host-local", "ranges": ranges, "routes": paths, "dataDir": str(directory)},
        }
        self.results: dict[str, dict[str, Any]] = {}

    def call(self, command: str, name: str) -> dict[str, Any]:
        """Runs the plugin; fails the test when it fails."""
        previous = {"prevResult": self.results[name]} if name in self.results else {}
        done = subprocess.run(
            ["nsenter", f"--net={self.node}", f"{PLUGINS}/bridge"],
            env={
                "CNI_COMMAND": command,
                "CNI_CONTAINERID": f"c-{name}",
                "CNI_NETNS": str(self.pods / name),
                "CNI_IFNAME": "eth0",
                "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={name}",
                "CNI_PATH": PLUGINS,
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            },
            input=json.dumps(self.conf | previous),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout) if done.stdout.strip() else {}

    def add(self, name: str) -> tuple[str, ...]:
        """Adds a pod; returns its addresses."""
        if not (self.pods / name).exists():
            netns.create(self.pods / name)
        self.results[name] = self.call("ADD", name)
        return tuple(item["address"].partition("/")[0] for item in self.results[name]["ips"])

    def delete(self, name: str) -> None:
        """Deletes a pod."""
        self.call("DEL", name)
        del self.results[name]
