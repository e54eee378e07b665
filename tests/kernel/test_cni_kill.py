"""The CNI part killed again and again while pods come and go: ledger, memory and kernel agree afterwards."""

import json
import random
import subprocess
import threading
import time
from pathlib import Path

import pytest
from tests.kernel.conftest import LINKS
from tests.kernel.warm_processes import WarmProcess, spawn

from podwire.cni import program, wiring
from podwire.cni.ipam.ledger import Ledger
from podwire.kernel import netns, network
from podwire.kernel.netlink import Netlink

SERVICE = """
import asyncio, sys
from pathlib import Path
from podwire.cni.service import CniService, CniSettings
from podwire.cni.wiring import WiringFacts
from podwire.runtime.clock import SystemClock
async def main():
    root = Path(sys.argv[1])
    settings = CniSettings(socket=root / "cni.sock", database=root / "ipam.db", link=sys.argv[2])
    service = CniService(settings, SystemClock())
    service.recover()
    service.set_node(WiringFacts(cidrs=("10.244.1.0/24",)))
    async with asyncio.TaskGroup() as group:
        group.create_task(service.run())
        group.create_task(service.delete_detached())
        group.create_task(service.forget_stale())
asyncio.run(main())
"""


class Churn(threading.Thread):
    """Adds and deletes pods as a container runtime does: a failed ADD is followed by DEL and a new container."""

    def __init__(self, root: Path, name: str, rounds: int) -> None:
        super().__init__(daemon=True)
        self.root, self.pod, self.rounds = root, name, rounds
        self.problems: list[str] = []
        self.retries = self.done = 0
        self.kept: list[tuple[str, str]] = []

    def call(self, verb: str, container: str) -> tuple[int, dict[str, object]]:
        environment = {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": container,
            "CNI_NETNS": str(self.root / "pods" / self.pod),
            "CNI_IFNAME": "eth0",
            "CNI_ARGS": f"K8S_POD_NAMESPACE=n;K8S_POD_NAME={self.pod}",
            "PODWIRE_CNI_SOCKET": str(self.root / "cni.sock"),
        }
        done = subprocess.run(
            [str(program.path())],
            env=environment,
            capture_output=True,
            check=False,
            input=b'{"cniVersion": "1.0.0", "name": "podwire"}',
        )
        return done.returncode, json.loads(done.stdout or b"{}")

    def run(self) -> None:
        for number in range(self.rounds):
            container = f"{self.pod}-{number}"
            status, answer = self.call("ADD", container)
            while status and answer.get("code") == 11:
                self.retries += 1
                self.delete(container)
                container += "r"
                status, answer = self.call("ADD", container)
            if status:
                self.problems.append(f"ADD {container}: {answer}")
            self.done += 1
            if number == self.rounds - 1:
                ips = answer.get("ips")
                self.kept = [(container, str(ip["address"])) for ip in ips] if isinstance(ips, list) else []
            else:
                self.delete(container)

    def delete(self, container: str) -> None:
        for _ in range(20):
            status, answer = self.call("DEL", container)
            if status == 0:
                return
            if answer.get("code") != 11:
                self.problems.append(f"DEL {container}: {answer}")
                return
        self.problems.append(f"DEL {container}: never")


@pytest.mark.slow
@pytest.mark.parametrize("link", LINKS)
def test_killed_while_pods_come_and_go(tmp_path: Path, link: str) -> None:
    node = tmp_path / "node"
    netns.create(node)

    def start() -> WarmProcess:
        return spawn(node, SERVICE, str(tmp_path), link, log=tmp_path / "log")

    threads = [Churn(tmp_path, f"pod{number}", 25) for number in range(4)]
    for thread in threads:
        netns.create(tmp_path / "pods" / thread.pod)
    service = start()
    kills = 0
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            # Wherever it is: a moment after the fourth pod that this run of it has added.
            done = sum(thread.done for thread in threads)
            while sum(thread.done for thread in threads) < done + 4 and any(thread.is_alive() for thread in threads):
                assert service.running(), (tmp_path / "log").read_text()
                time.sleep(0.002)
            time.sleep(random.uniform(0.0, 0.08))
            service.kill()
            service.wait()
            kills += 1
            service = start()
        for thread in threads:
            thread.join()
        assert [problem for thread in threads for problem in thread.problems] == []
        assert kills > 1
        remaining = {pair for thread in threads for pair in thread.kept}
        assert len(remaining) == len({address for _, address in remaining}) == 4
        time.sleep(0.5)
        service.kill()
        service.wait()
        with Netlink(node) as netlink:
            have = network.read(netlink)
        held = Ledger(tmp_path / "ipam.db")
        attached = held.attachments()
        held.close()
        assert {(key.container, f"{ip}/32") for key, item in attached.items() for ip in item.addresses} == remaining
        assert {route.dst for route in have.routes} == {address for _, address in remaining}
        owners = [wiring.owner_of(link) for link in have.links if link.group != network.DELETE_GROUP]
        assert {owner[0] for owner in owners if owner} == {container for container, _ in remaining}
    finally:
        service.kill()
        service.wait()
        for thread in threads:
            netns.delete(tmp_path / "pods" / thread.pod)
        netns.delete(node)
