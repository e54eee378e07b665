"""Takes over the addresses that the plugin ``host-local`` holds on this node.

``host-local`` keeps a file for each address, named as the address, with the container and the interface as two lines
(older versions: only the container). Where podwire replaces it, pods that run keep their addresses: podwire must not
assign them again. So the addresses become leases of pods that podwire does not wire (:mod:`podwire.cni.ipam.lending`).
A lease ends when podwire gets the pod's DEL, or when its file is gone, since a DEL of ``host-local`` removes it. A file
that is empty, as after a power cut, holds its address too. The files are only read. Source:
plugins/ipam/host-local/backend/disk of containernetworking.
"""

from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

from podwire.cni.ipam.ledger import Attachment
from podwire.cni.ipam.pool import Address
from podwire.cni.protocol import AttachmentKey

_CURSOR = "last_reserved_ip."


def read(directory: Path) -> list[Attachment]:
    """The addresses that ``host-local`` holds, by attachment; ``netns`` of each is the path of a file of it.

    The name of the directory is that of the network.

    Raises: OSError.
    """
    held: dict[AttachmentKey, Attachment] = {}
    for address, path in _files(directory):
        lines = path.read_text(errors="replace").split("\n")
        container = lines[0].strip() or f"unknown-{str(address).replace(':', '_')}"
        ifname = lines[1].strip() if len(lines) > 1 else "eth0"
        key = AttachmentKey(directory.name, container, ifname or "eth0")
        addresses = (*(held[key].addresses if key in held else ()), str(address))
        held[key] = Attachment(key=key, addresses=addresses, host_link="", mac="", netns=str(path))
    return list(held.values())


def last_assigned(directory: Path) -> list[Address]:
    """The address of each range that was assigned last: podwire continues after it.

    Raises: OSError.
    """
    texts = [path.read_text(errors="replace").strip() for path in sorted(directory.glob(f"{_CURSOR}*"))]
    return [address for text in texts if (address := _address(text)) is not None]


def _files(directory: Path) -> Iterator[tuple[Address, Path]]:
    for path in sorted(directory.iterdir()):
        address = _address(path.name)
        if address is not None and path.is_file():
            yield address, path


def _address(text: str) -> Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None
