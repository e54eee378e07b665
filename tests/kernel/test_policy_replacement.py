"""Rules that are replaced hundreds of times while packets flow: none leaks, none is lost, counted in packets.

One process sends datagrams to a port that is allowed all the time and to one that never is, while the policies behind
both come in one wording after the other, and now and then everything is loaded anew. Each replacement is a commit in
each family, for which the kernel takes some milliseconds. Wordings, peers and selectors repeat after 420 numbers;
``REPLACEMENTS=n`` makes it another number.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.kernel.policy_checks import DB, OPEN, change, policy
from tests.kernel.policy_namespaces import FACTS, World, inside, load, path
from tests.kernel.test_policy_packets import compilers

from podwire.kernel import netns
from podwire.policy.compile import Compiler
from podwire.policy.dataplanes.nftables.dataplane import NftablesPolicy

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

REPLACEMENTS = int(os.environ.get("REPLACEMENTS", "420"))
ALLOWED, DENIED = 5432, 5433
_FLOOD = """
import select, socket, sys, time
socks = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
for sock, port in zip(socks, map(int, sys.argv[2:])):
    sock.connect((sys.argv[1], port))
sent = [0, 0]
print("sending", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    for _ in range(32):
        for number, sock in enumerate(socks):
            try:
                sent[number] += sock.send(b"x")
            except OSError:
                pass
    time.sleep(0.0005)  # so that no queue on the way is ever full
print(*sent, flush=True)
"""


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as created:
        created.attach_pods(OPEN)
        yield created


@pytest.fixture
def plane(world: World) -> Iterator[NftablesPolicy]:
    nftables_policy = NftablesPolicy(FACTS["n1"], path("n1"))
    yield nftables_policy
    nftables_policy.remove()
    nftables_policy.close()


class Flood:
    """A process that sends to both ports from a pod, from the first line it prints until it is stopped."""

    def __init__(self) -> None:
        arguments = [sys.executable, "-c", _FLOOD, DB, str(ALLOWED), str(DENIED)]
        with netns.inside(path("shop-web")):
            self.process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "sending\n"

    def stop(self) -> tuple[int, int]:
        """The number of datagrams sent to each port."""
        output, _ = self.process.communicate("stop\n", timeout=10)
        allowed, denied = output.split()
        return int(allowed), int(denied)


@pytest.fixture
def seen(world: World) -> Iterator[None]:
    """The pod's kernel counts the datagrams to both ports and answers none."""
    rules = "; ".join(
        f"add counter ip seen p{port}; add rule ip seen in udp dport {port} counter name p{port} drop"
        for port in (ALLOWED, DENIED)
    )
    chain = "add table ip seen; add chain ip seen in { type filter hook input priority 0; }"
    inside("shop-db", "nft", f"{chain}; {rules}")
    yield
    inside("shop-db", "nft", "delete table ip seen")


def arrived(port: int) -> int:
    text = inside("shop-db", "nft", "list", "counter", "ip", "seen", f"p{port}")
    return int(text.split("packets ")[1].split()[0])


PORT = {"port": ALLOWED, "protocol": "UDP"}
WORDINGS: tuple[dict[str, Any], ...] = (
    {"from": [{"podSelector": {}}], "ports": [PORT]},
    {"from": [{"ipBlock": {"cidr": "10.180.0.0/24", "except": ["10.180.0.128/25"]}}], "ports": [PORT, {"port": 1}]},
    {"ports": [{"port": 5000, "endPort": ALLOWED, "protocol": "UDP"}]},
    {"from": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "web"}}}], "ports": [PORT]},
)
"""All of them allow the one port and not the other."""
OTHERS: tuple[list[dict[str, Any]], ...] = (
    [],
    [{"ipBlock": {"cidr": "198.51.100.0/24"}}],
    [{"ipBlock": {"cidr": "10.180.0.0/26"}}],
    [{"ipBlock": {"cidr": "10.180.0.0/22", "except": ["10.180.0.0/28"]}}, {"podSelector": {}}],
)
"""The peers of another policy: everybody, or ranges beside, within and around those of the first one."""


SELECTORS: tuple[dict[str, Any], ...] = (
    {"matchLabels": {"app": "db"}},
    {"matchExpressions": [{"key": "app", "operator": "In", "values": ["db", "none"]}]},
    {"matchExpressions": [{"key": "own", "operator": "NotIn", "values": ["none"]}]},
)
"""Of the other policy: those of the first policy, another one for the same pod, and one for more pods."""


def replace(plane: NftablesPolicy, world: World, compiler: Compiler, number: int) -> Compiler:
    """Rewords, adds, changes or deletes a policy, and sometimes reloads everything, also after a restart."""
    rule = WORDINGS[number % len(WORDINGS)]
    allow = policy("shop/allow", podSelector={"matchLabels": {"app": "db"}}, ingress=[rule])
    ports = [{"port": 6000 + number % 5000}]
    rule = {"ports": ports, "from": OTHERS[number // 5 % len(OTHERS)]}
    other = policy("shop/other", podSelector=SELECTORS[number // 7 % len(SELECTORS)], ingress=[rule])
    policies = {"shop/allow": allow, "shop/other": other if number % 3 else None}
    change(plane, world, compiler, allow=allow, other=policies["shop/other"])
    if number % 50 == 0:
        compiler = compilers(OPEN)["n1"]
        for name, item in policies.items():
            compiler.set_policy(name, item)
        compiler.flush()
        load(plane, compiler, world)
    return compiler


def test_nothing_leaks_and_nothing_is_lost(world: World, plane: NftablesPolicy, seen: None) -> None:
    compiler = compilers(OPEN)["n1"]
    compiler = replace(plane, world, compiler, 1)
    load(plane, compiler, world)
    flood = Flood()
    for number in range(REPLACEMENTS):
        compiler = replace(plane, world, compiler, number)
    allowed, denied = flood.stop()
    assert min(allowed, denied) > 5 * REPLACEMENTS
    leaked, lost = arrived(DENIED), allowed - arrived(ALLOWED)
    assert (leaked, lost) == (0, 0), f"of {allowed} and {denied} datagrams, during {REPLACEMENTS} replacements"
