"""Files that tell NetworkManager, systemd-networkd and udev to leave the devices of podwire alone (pure).

Without them NetworkManager may take over a device and delete its addresses, systemd-networkd may delete routes that it
did not write, and udev may give a device another hardware address (``MACAddressPolicy=persistent``) after its peers
have learned the first. Devices of routing have the prefix ``podwire-``; the node's ends of pods' devices are named
after pods, and have one hardware address.
"""

from collections.abc import Iterator
from typing import NamedTuple

MARK = "# podwire: written by the node agent"
"""The first line of each file: a file without it belongs to another program."""
_NAMES = "podwire-*"


class LinkFile(NamedTuple):
    """A file below ``/etc``; ``program`` is the directory that shows that its reader is installed."""

    program: str
    path: str
    text: str


def link_files(pod_mac: str) -> Iterator[LinkFile]:
    """The files; ``pod_mac`` is the hardware address of the node's ends of pods' devices."""
    yield LinkFile(
        "NetworkManager",
        "NetworkManager/conf.d/90-podwire.conf",
        _text("keyfile", f"unmanaged-devices+=interface-name:{_NAMES};mac:{pod_mac}"),
    )
    for name, match in (("podwire", f"Name={_NAMES}"), ("podwire-pods", f"MACAddress={pod_mac}")):
        text = _text("Match", match) + "\n[Link]\nUnmanaged=yes\n"
        yield LinkFile("systemd", f"systemd/network/10-{name}.network", text)
    text = _text("Match", f"OriginalName={_NAMES}") + "\n[Link]\nMACAddressPolicy=none\nNamePolicy=keep kernel\n"
    yield LinkFile("systemd", "systemd/network/10-podwire.link", text)


def _text(section: str, line: str) -> str:
    return f"{MARK} (option linkFiles)\n[{section}]\n{line}\n"
