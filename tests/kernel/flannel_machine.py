"""Nodes of Flannel in a small cluster: pods by the reference plugins, and the kernel state that flanneld programs.

flanneld itself is not part of the machine. Its state is made with ip(8), bridge(8) and iptables-restore as its sources
specify it (pkg/backend/vxlan, pkg/trafficmngr/iptables), from the annotations of the Nodes, twice a second.
"""

import contextlib
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests.kernel.agent_cluster import Machine, inside
from tests.kernel.bridge_pods import NETWORK, BridgeRuntime

from podwire.errors import ApiUnreachable, KernelError
from podwire.kube.resources import NODES
from podwire.routing.flannel import annotations

_FOLLOWED_S = 0.5
"""Seconds between two looks at the Nodes."""
CHAINS = """
*nat
:FLANNEL-POSTRTG - [0:0]
-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.244.0.0/16 -d 10.244.0.0/16 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.244.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
COMMIT
*filter
:FLANNEL-FWD - [0:0]
-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
-A FLANNEL-FWD -s 10.244.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
-A FLANNEL-FWD -d 10.244.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
COMMIT
"""


class FlannelNode:
    """One node, with flanneld's programming while :meth:`start` has run and :meth:`stop` has not."""

    def __init__(self, machine: Machine, number: int) -> None:
        self.machine = machine
        self.name, self.number = f"node-{number}", number
        self.place = machine.root / self.name
        self.address, self.mac = f"10.89.0.{10 + number}", f"8a:34:5e:00:00:0{number}"
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        machine.add_node(number, ("cni", "routing", "proxy"), start=False)
        inside(self.place, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        self.configurations = machine.root / f"{self.name}-net.d"
        self.configurations.mkdir()
        directory = machine.root / f"{self.name}-networks"
        self.runtime = BridgeRuntime(self.place, machine.root / "pods", directory, f"10.244.{number}.0/24")
        self.runtime.conf |= {"mtu": 1450, "ipMasq": False}
        (self.configurations / "10-flannel.conflist").write_text(
            json.dumps({"name": NETWORK, "cniVersion": "1.0.0", "plugins": [{"type": "flannel"}]})
        )
        self.file = machine.root / f"{self.name}.yaml"
        more = {
            "serviceCIDRs": ["10.96.0.0/16"],
            "cni": {"hostLocal": str(directory / NETWORK), "confDir": str(self.configurations)},
            "flannel": {"announce": True},
            "routing": {"backend": "vxlan", "vni": 1, "port": 8472},
        }
        self.file.write_text(json.dumps(json.loads(self.file.read_text()) | more))

    def start(self) -> None:
        """What flanneld does at its start: the device, the chains, the annotations; then it follows the Nodes."""
        own = f"10.244.{self.number}.0"
        for command in (
            f"link add flannel.1 address {self.mac} mtu 1450 type vxlan id 1 dev eth0 local {self.address}"
            " dstport 8472 nolearning",
            f"address add {own}/32 dev flannel.1",
            "link set flannel.1 up",
        ):
            inside(self.place, "ip", *command.split())
        subprocess.run(
            ["nsenter", f"--net={self.place}", "iptables-restore", "--noflush"], input=CHAINS.encode(), check=True
        )
        facts = annotations.write("vxlan", {4: annotations.Vtep(self.mac, 1)}, {4: self.address})
        self.machine.api("patch", NODES, self.name, {"metadata": {"annotations": facts}})
        self._stopping.clear()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends flanneld, which leaves its state."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _follow(self) -> None:
        programmed: dict[str, str] = {}
        while not self._stopping.wait(_FOLLOWED_S):
            with contextlib.suppress(ApiUnreachable, AssertionError, KernelError):
                for node in self.machine.api("list", NODES.raw).items:
                    self._learn(node, programmed)

    def _learn(self, node: Any, programmed: dict[str, str]) -> None:
        name, facts = node["metadata"]["name"], node["metadata"].get("annotations") or {}
        data = facts.get(annotations.BACKEND_DATA[4])
        if name == self.name or not data or programmed.get(name) == data:
            return
        programmed[name] = data
        mac, outer = json.loads(data)["VtepMAC"], facts[annotations.PUBLIC_IP[4]]
        cidr = node["spec"]["podCIDR"]
        gateway = cidr.partition("/")[0]
        neighbour = ("neigh", "replace", gateway, "lladdr", mac, "dev", "flannel.1", "nud", "permanent")
        inside(self.place, "bridge", "fdb", "replace", mac, "dev", "flannel.1", "dst", outer, "self", "permanent")
        inside(self.place, "ip", *neighbour)
        inside(self.place, "ip", "route", "replace", cidr, "via", gateway, "dev", "flannel.1", "onlink")

    def step(self, step: str, *arguments: str) -> str:
        """Runs a step of a migration on the node; fails the test when the step fails."""
        words = ("migrate", "node", step, "--config", str(self.file), *arguments)
        done = subprocess.run(
            ["nsenter", f"--net={self.place}", sys.executable, "-m", "podwire.cli.main", *words],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{step}: {done.stdout}{done.stderr}"
        return done.stdout

    def files(self) -> list[str]:
        """The configurations of the container runtime."""
        return sorted(path.name for path in self.configurations.iterdir())


class FlowProcess:
    """The programs of ``podwire flows`` in the namespace of a pod."""

    def __init__(self, machine: Machine, pod: str, *targets: str) -> None:
        self._log: Path = machine.root / f"flows-{pod}-{len(targets)}.out"
        words = ("flows", *(("send", *targets) if targets else ("serve",)))
        with self._log.open("wb") as log:
            machine.processes[self._log.stem] = subprocess.Popen(
                ["nsenter", f"--net={machine.root}/pods/{pod}", sys.executable, "-m", "podwire.cli.main", *words],
                stdout=log,
                stderr=log,
            )

    @property
    def log(self) -> str:
        """What the program has printed."""
        return self._log.read_text()
