"""The process of BIRD on a node."""

from hashlib import sha256
from ipaddress import IPv4Address

from podwire.bgp.birdconf import SessionTexts, render
from podwire.bgp.configuration import Address, BgpConfiguration
from podwire.runtime.program import Child

BIRD = "/usr/sbin/bird"
BIRDCL = "/usr/sbin/birdcl"


def bird_child(run_dir: str, configuration: BgpConfiguration, texts: SessionTexts | None = None) -> Child:
    """The process, which reads a changed configuration without a restart; ``texts`` as in ``birdconf.render``."""
    file, control = f"{run_dir}/bird.conf", f"{run_dir}/bird.ctl"
    return Child(
        name="bird",
        argv=(BIRD, "-f", "-R", "-c", file, "-s", control),
        files={file: render(configuration, texts).encode()},
        check=(BIRD, "-p", "-c", file),
        on_file_change="reload",
        reload=(BIRDCL, "-s", control, "configure"),
        restart_by="kill",
    )


def router_id(address: Address | None, node: str) -> IPv4Address:
    """The node's IPv4 address; on a node without one, a number derived from its name (RFC 6286: unique and not 0)."""
    if isinstance(address, IPv4Address):
        return address
    return IPv4Address(int.from_bytes(sha256(node.encode()).digest()[:4], "big") | 1)
