"""Removes kube-proxy's tables after the rules of this proxy are in force for the first time."""

import asyncio
from collections.abc import Callable

from podwire.errors import KernelError
from podwire.observe.log import Log
from podwire.proxy import leftovers


async def replace_kube_proxy(loaded: asyncio.Event, started: Callable[[], None]) -> None:
    """Waits for the first load, calls ``started`` and removes the tables of kube-proxy; then ends."""
    log = Log("proxy")
    await loaded.wait()
    started()
    try:
        if await asyncio.to_thread(leftovers.clear_kube_proxy):
            log.info("removed kube-proxy's nftables tables")
    except KernelError as problem:
        log.warning("cannot remove kube-proxy's nftables tables", problem=problem)
