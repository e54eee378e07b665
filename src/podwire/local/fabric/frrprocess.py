"""The processes of FRR on the router of a fabric: their start, and what makes bgpd follow a changed file.

    python -m podwire.local.fabric.frrprocess /run/podwire/demo/router/bgpd.conf

FRR makes a folder for each process in ``/var/tmp/frr``, which stays when the process is killed. So each has a
``/var/tmp`` of its own, which goes with the process.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from pathlib import Path

from podwire.embedded.kubelet.mounts import MS_REC, MS_SLAVE, mount, unmount
from podwire.local.fabric.frr import VTYSH, ZEBRA_SOCKET, changes, command
from podwire.runtime.child import CLONE_NEWNS, run, unshare
from podwire.runtime.polling import wait_until

_ZEBRA_WAIT_S = 10.0
"""bgpd tries again only after 10 s when it cannot connect to zebra."""
_COMMAND_S = 30.0


def start(path: str) -> None:
    """Becomes the process with the configuration at ``path``.

    Raises: OSError.
    """
    zebra_socket = Path(path).parent / ZEBRA_SOCKET
    if Path(path).stem == "zebra":
        zebra_socket.unlink(missing_ok=True)
        _end_bgpd(Path(path).parent)
    else:
        wait_until(lambda: _takes_connections(zebra_socket), _ZEBRA_WAIT_S)
    _use_own_folder()
    argv = command(path)
    os.execv(argv[0], argv)


def _use_own_folder() -> None:
    """Gives this process a ``/var/tmp`` of its own, and no mounted namespaces: it would keep those of deleted pods."""
    unshare(CLONE_NEWNS)
    mount("none", "/", flags=MS_REC | MS_SLAVE)
    mount("podwire", "/var/tmp", "tmpfs", data="mode=1777")
    mounted = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    for line in reversed([line for line in mounted if " - nsfs " in line]):
        unmount(line.split()[4].encode().decode("unicode_escape"))


def _end_bgpd(folder: Path) -> None:
    """Ends the bgpd of an earlier zebra: it would never give its routes to the new one. Its parent starts it again."""
    with contextlib.suppress(OSError, ValueError):
        pid = int((folder / "bgpd.pid").read_text(encoding="ascii"))
        if str(folder / "bgpd.conf") in Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0"):
            os.kill(pid, signal.SIGKILL)


def _takes_connections(zebra_socket: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(zebra_socket))
        except OSError:
            return False
        return True


async def follow(path: str) -> str:
    """Makes the running bgpd follow its file at ``path``; returns the problem, empty when there is none.

    Sessions stay. Neighbours are asked for their routes again, because other routes may be accepted now.
    """
    vtysh = (VTYSH, "--vty_socket", str(Path(path).parent))
    running = await run((*vtysh, "-c", "show running-config"), env={}, timeout_s=_COMMAND_S)
    if running.code != 0:
        return (running.errors or running.output).decode(errors="replace").strip() or "bgpd does not answer"
    commands = changes(running.output.decode(), Path(path).read_text(encoding="ascii"))
    if not commands:
        return ""
    file = Path(f"{path}.changes")
    file.write_text(commands, encoding="ascii")
    for arguments in (("-f", str(file)), ("-c", "clear bgp * soft in")):
        done = await run((*vtysh, *arguments), env={}, timeout_s=_COMMAND_S)
        if done.code != 0:
            return (done.errors + done.output).decode(errors="replace").strip()
    return ""


if __name__ == "__main__":
    sys.exit(asyncio.run(follow(sys.argv[1])) or 0)
