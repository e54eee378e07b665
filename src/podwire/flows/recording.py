"""Records the changes of this network namespace: notifications of rtnetlink and transactions of nftables; blocking.

A line says when, what, and for nftables which program. The clock is the machine's, so the lines of nodes compare as
well as their clocks. Without the right to listen to nftables (CAP_NET_ADMIN) the first line says so, and only the rest
is recorded.
"""

import contextlib
import selectors
import socket
from collections.abc import Callable

from podwire.errors import KernelError
from podwire.flows.changes import KernelChange, NetworkEvent, merge, name_device, transaction, write
from podwire.kernel.monitor import GROUPS, Monitor
from podwire.kernel.nft_generations import GenerationMonitor
from podwire.runtime.clock import SystemClock


def record(say: Callable[[str], None], ended: Callable[[], bool] = lambda: False, poll_s: float = 60.0) -> None:
    """Says each change as a line; returns when ``ended`` holds, which is asked after each change and each ``poll_s``.

    Raises: KernelError when the kernel cannot be watched.
    """
    clock = SystemClock()
    names = dict(socket.if_nameindex())
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
        network = stack.enter_context(Monitor(None, GROUPS))
        selector.register(network, selectors.EVENT_READ)
        tables = _tables(selector, stack, lambda text: say(write(_notice(text, clock.now().timestamp()))))
        say(write(_notice("recording", clock.now().timestamp())))
        while not ended():
            selector.select(poll_s)
            at = clock.now().timestamp()
            events = [
                NetworkEvent(e.kind, e.removed, name_device(e.device, socket.if_indextoname, names), e.proto, e.dst)
                for e in network.read()
            ]
            for change in merge(events, at):
                say(write(change))
            for done in tables.read() if tables is not None else ():
                say(write(transaction(done.changes.items(), done.process, at, missed=done.missed)))


def _tables(
    selector: selectors.BaseSelector, stack: contextlib.ExitStack, say: Callable[[str], None]
) -> GenerationMonitor | None:
    try:
        tables = GenerationMonitor()
    except KernelError as failure:
        say(f"nftables is not recorded: {failure}")
        return None
    stack.callback(tables.close)
    selector.register(tables, selectors.EVENT_READ)
    return tables


def _notice(text: str, at: float) -> KernelChange:
    return KernelChange(at=at, subject="recorder", text=text)
