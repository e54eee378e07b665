"""``podwire upgrade node`` reads and writes a real node: rules of several programs, routes, sets, files."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kernel.agent_cluster import inside

from podwire.errors import ConfigError
from podwire.kernel import netns
from podwire.upgrade.backup import compare, restore, transfer
from podwire.upgrade.backup.compare import TextKey
from podwire.upgrade.backup.folder import BackupFolder
from podwire.upgrade.backup.index import BackupIndex
from podwire.upgrade.backup.transfer import NodeFile

PODWIRE = str(Path(sys.executable).parent / "podwire")
SETUP = (
    "ip link set lo up",
    "ip link add uplink type veth peer name uplink-peer",
    "ip link set uplink up",
    "ip link set uplink-peer up",
    "ip address add 192.0.2.5/24 dev uplink",
    "ip route add 10.244.7.0/24 via 192.0.2.9",
    "ip rule add from 10.244.0.0/16 lookup 77 priority 500",
    "nft add table inet foreign",
    "nft add chain inet foreign input { type filter hook input priority 0; }",
    "nft add rule inet foreign input tcp dport 9 counter drop",
    "iptables-nft -t nat -N KUBE-SERVICES",
    "iptables-nft -t nat -A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m tcp --dport 443 -j RETURN",
    "ipset create KUBE-CLUSTER-IP hash:ip,port",
    "ipset add KUBE-CLUSTER-IP 10.96.0.1,tcp:443",
)
CONFLIST = b'{"cniVersion": "1.0.0", "name": "cbr0", "plugins": [{"type": "flannel"}]}'


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Path]:
    """A node with the rules of others, and the folders of its container runtime."""
    place = tmp_path / "node"
    netns.create(place)
    for folder in ("net.d", "bin"):
        (tmp_path / folder).mkdir()
    (tmp_path / "net.d" / "10-flannel.conflist").write_bytes(CONFLIST)
    (tmp_path / "net.d" / "calico-kubeconfig").write_text("a token")
    (tmp_path / "bin" / "flannel").write_bytes(b"program")
    try:
        for command in SETUP:
            inside(place, *command.split())
        yield place
    finally:
        netns.delete(place)


def command(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    folders = ["--conf-dir", str(place.parent / "net.d")]
    if arguments[0] == "read":
        folders += ["--bin-dir", str(place.parent / "bin")]
    words = ["nsenter", f"--net={place}", PODWIRE, "upgrade", "node", arguments[0], *folders, *arguments[1:]]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def texts(place: Path) -> dict[TextKey, bytes]:
    done = command(place, "read")
    assert done.returncode == 0, done.stderr
    return {(file.kind, file.name): file.data for file in transfer.parse(done.stdout, "node")}


def test_every_program_of_a_node_is_in_its_texts(node: Path) -> None:
    read = texts(node)
    for name, text in {
        "nft": "tcp dport 9",
        "iptables-nft": "-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m tcp --dport 443 -j RETURN",
        "routes": "10.244.7.0/24 via 192.0.2.9",
        "rules": "10.244.0.0/16",
        "links": "uplink",
        "ipset": "10.96.0.1,tcp:443",
        "sysctl": "net.ipv4.ip_forward = ",
    }.items():
        assert text in read["kernel", name].decode(), (name, read["kernel", name])
    assert read["kernel", "iptables-legacy"] == b""
    assert read["configuration", "10-flannel.conflist"] == CONFLIST
    assert read["programs", "cni"].startswith(b"flannel ")
    assert not any(name == "calico-kubeconfig" for _, name in read), "files with credentials are left out"


def test_a_node_that_nobody_touches_has_no_differences(node: Path) -> None:
    before = texts(node)
    assert compare.compare(before, texts(node)) == ()
    inside(node, "ip", "route", "replace", "10.244.7.0/24", "via", "192.0.2.8")
    inside(node, "nft", "flush", "chain", "inet", "foreign", "input")
    (node.parent / "bin" / "flannel").write_bytes(b"another")
    changed = {(difference.kind, difference.name) for difference in compare.compare(before, texts(node))}
    assert changed == {("kernel", "routes"), ("kernel", "nft"), ("programs", "cni")}


def test_a_lost_configuration_is_written_back_whole(node: Path) -> None:
    folder = node.parent / "net.d"
    (folder / "10-flannel.conflist").unlink()
    file = NodeFile(kind="configuration", name="10-flannel.conflist", data=CONFLIST)
    done = command(node, "write", "--file", restore.argument_of(file))
    assert (done.returncode, done.stdout) == (0, "wrote 10-flannel.conflist\n"), done.stderr
    assert (folder / "10-flannel.conflist").read_bytes() == CONFLIST
    assert sorted(path.name for path in folder.iterdir()) == ["10-flannel.conflist", "calico-kubeconfig"]
    for wrong in ("../x=YQ==", "x", "x=?"):
        refused = command(node, "write", "--file", wrong)
        assert (refused.returncode, "expected NAME=BASE64" in refused.stderr) == (2, True), refused


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_leaves_no_backup_and_no_half_content(small_disk: Path) -> None:
    folder = BackupFolder(small_disk / "backup")
    folder.prepare()
    small = folder.put("object", "ConfigMap a/b", b"small")
    with pytest.raises(OSError, match="No space left on device"):
        folder.put("kernel", "nft", b"x" * 1_000_000, "node-1")
    assert [path.name for path in (small_disk / "backup" / "blobs").iterdir()] == [small.digest]
    with pytest.raises(ConfigError, match="is no complete backup"):
        folder.open()
    folder.prepare()
    folder.finish(BackupIndex(entries=(small,)))
    assert folder.open().entries == (small,)
