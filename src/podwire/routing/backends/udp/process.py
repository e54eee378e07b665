"""The process of the backend udp: ``python -m podwire.routing.backends.udp.process DEVICE LISTEN FILE``.

Keeper and worker are those of :mod:`podwire.runtime.keeper` with one table of descriptors: the worker carries the
packets, and when it is killed, the next one finds device, UDP socket and control socket open, with the packets that
wait in them. ``FILE`` keeps the last text that the agent gave, so a new worker needs no agent.

A worker whose keeper was killed goes on. The agent starts a new process then, which takes the descriptors from that
worker; so no packet is lost in this case either, nor when the agent wants another port. A worker without a keeper ends
when its device is gone.
"""

import os
import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn

from podwire.errors import KernelError, KernelNotFound
from podwire.kernel import tun
from podwire.kernel.udptunnel import DESCRIPTORS, control_name, exchange
from podwire.observe import log
from podwire.observe.log import Log
from podwire.routing.backends.udp.carrier import PacketCarrier, open_socket
from podwire.routing.backends.udp.control import DescriptorLoop, UdpAnswer, UdpControl
from podwire.routing.backends.udp.peers import Endpoint
from podwire.runtime.child import set_title
from podwire.runtime.files import write_atomically
from podwire.runtime.keeper import KEEPER_GONE, keep_descriptors
from podwire.state.udptunnel import UdpTunnel, endpoint_address, parse, parse_difference

_TUN, _SOCKET, _LISTENER = 100, 101, 102
"""The numbers of the descriptors, which every worker finds."""
_RETRY_S = 0.05
_LONELY_TICKS = 60
"""Ticks without a device after which a worker without a keeper ends."""


class UdpWorker:
    """The process that carries packets; the other one is the keeper, which runs this constructor."""

    def __init__(self, device: str, listen: str, file: Path) -> None:
        self._device = device
        self._listen = listen
        self._file = file
        self._keeper = os.getpid()
        self._state = UdpTunnel(device, listen)
        self._text = str(self._state)
        self._log = Log("udp")
        self._ticks = 0

    def run(self) -> None:
        """Carries packets until SIGTERM; without a device, waits for it."""
        set_title("podwire udp")
        signal.signal(KEEPER_GONE, signal.SIG_IGN)
        self._loop = DescriptorLoop()
        ending = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        signal.signal(signal.SIGTERM, lambda *_: os.eventfd_write(ending, 1))
        self._loop.watch(ending, self._end)
        sock = socket.socket(fileno=_SOCKET)
        self._carrier = PacketCarrier(_TUN, sock)
        self._restore()
        self._loop.watch(_SOCKET, self._carrier.receive)
        listener = socket.socket(fileno=_LISTENER)
        UdpControl(self._loop, listener, self._serve)
        self._attached = False
        self._attach()
        self._loop.run(lambda: None if self._attached else _RETRY_S, self._attach)
        listener.detach()
        sock.detach()

    def _end(self) -> None:
        self._file.unlink(missing_ok=True)
        self._loop.running = False

    def _restore(self) -> None:
        """Takes the peers that the worker before had."""
        try:
            self._use(self._file.read_text())
        except (OSError, ValueError):
            return

    def _use(self, text: str) -> None:
        tunnels = parse(text.splitlines())
        if [(tunnel.device, tunnel.listen) for tunnel in tunnels] != [(self._device, self._listen)]:
            raise ValueError(f"expected one tunnel: udp {self._device} listen {self._listen}")
        self._keep(tunnels[0])
        self._carrier.use(self._state.peers)

    def _keep(self, state: UdpTunnel) -> None:
        self._state, self._text = state, str(state)

    def _change(self, text: str) -> None:
        change = parse_difference(self._device, text.splitlines())
        self._keep(change.of(self._state))
        self._carrier.change(change)

    def _attach(self) -> None:
        """Opens the device when it exists; a device that was deleted and made again is opened anew."""
        if not tun.is_attached(_TUN):
            try:
                socket.if_nametoindex(self._device)
                descriptor = tun.open_tun(self._device, vnet_header=True)
            except (OSError, KernelError):
                self._wait_for_device()
                return
            os.dup2(descriptor, _TUN, inheritable=False)
            os.close(descriptor)
        self._attached, self._ticks = True, 0
        self._loop.watch(_TUN, self._carry)

    def _wait_for_device(self) -> None:
        self._ticks += 1
        if self._ticks > _LONELY_TICKS and os.getppid() != self._keeper:
            self._loop.running = False

    def _carry(self) -> None:
        try:
            self._carrier.send()
        except OSError:
            self._detach()

    def _detach(self) -> None:
        self._loop.ignore(_TUN)
        self._attached = False

    def _drain(self) -> None:
        """Carries what waits: the agent moves routes first, asks then, and removes the device after the answer."""
        try:
            if self._attached:
                self._carrier.drain()
        except OSError:
            self._detach()

    def _serve(self, request: str) -> UdpAnswer:
        """The answer to one request.

        Raises: ValueError when the text of a tunnel is wrong; the last good one stays.
        """
        verb, _, text = request.partition("\n")
        head = "ok\n"
        if verb == "show":
            self._drain()
            return UdpAnswer(f"{head}{self._text}")
        if verb == "counters":
            counted = sorted(self._carrier.counters.items())
            return UdpAnswer(head + "\n".join(f"{name}: {number}" for name, number in counted))
        if verb in ("set", "change"):
            (self._use if verb == "set" else self._change)(text)
            write_atomically(self._file, self._text.encode(), 0o600)
            return UdpAnswer(head)
        if verb == "take" and os.getppid() != self._keeper:
            held = (_LISTENER, _SOCKET, _TUN) if self._attached else (_LISTENER, _SOCKET)
            return UdpAnswer(head, held, lambda: os._exit(0))
        raise ValueError(f"no such request now: {verb!r}")


def _take(device: str) -> list[int]:
    """The descriptors of a worker whose keeper was killed: control socket, UDP socket, device; none without it.

    Raises: KernelError when a process with a keeper runs the device.
    """
    try:
        return exchange(None, device, "take", DESCRIPTORS)[1]
    except KernelNotFound:
        return []


def _address_of(descriptor: int) -> Endpoint:
    with socket.socket(fileno=os.dup(descriptor)) as sock:
        host, port = sock.getsockname()[:2]
    return host, port


def _open(device: str, listen: str) -> None:
    """Puts the descriptors at their numbers.

    Raises: KernelError; OSError.
    """
    opened = dict(zip((_LISTENER, _SOCKET, _TUN), _take(device), strict=False))
    if _SOCKET in opened and _address_of(opened[_SOCKET]) != endpoint_address(listen):
        os.close(opened.pop(_SOCKET))
    if _LISTENER not in opened:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(control_name(device))
        listener.listen(16)
        opened[_LISTENER] = listener.detach()
    if _SOCKET not in opened:
        opened[_SOCKET] = open_socket(endpoint_address(listen)).detach()
    for number, descriptor in opened.items():
        os.dup2(descriptor, number, inheritable=False)
        os.close(descriptor)


def main() -> NoReturn:
    """Becomes the keeper of a worker."""
    device, listen, file = sys.argv[1:]
    log.configure()
    try:
        _open(device, listen)
    except (KernelError, OSError) as failure:
        Log("udp").error("cannot start", problem=failure)
        sys.exit(1)
    set_title("podwire udp keeper")
    worker = UdpWorker(device, listen, Path(file))
    keep_descriptors(worker.run, lambda: os._exit(1))


if __name__ == "__main__":
    main()
