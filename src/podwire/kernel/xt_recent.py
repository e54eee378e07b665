"""The address lists of iptables' match ``recent`` (``/proc/net/xt_recent``), with the age of each address.

The kernel prints the time of the last packet in ticks (jiffies). The number of ticks per second follows from
``/proc/timer_list``, which has ticks and nanoseconds since boot: the counter starts 300 seconds before it overflows in
32 bits. Without that file the age of every address is 0.

Source: net/netfilter/xt_recent.c (recent_seq_show), include/linux/jiffies.h (INITIAL_JIFFIES).
"""

import re
from ipaddress import ip_address
from pathlib import Path

from podwire.kernel.netns import inside

_LISTS = Path("/proc/thread-self/net/xt_recent")
_TIMERS = Path("/proc/timer_list")
_LINE = re.compile(r"^src=(\S+) .*\blast_seen: (\d+)", re.MULTILINE)
_START_S = 300
_WRAP = 1 << 32
_RATES = (100, 250, 300, 1000)  # kernel/Kconfig.hz


def read(netns: Path | str | None = None) -> dict[str, dict[str, float]]:
    """Seconds since an address was seen, by address by list, in a network namespace (None: that of this thread)."""
    with inside(netns):
        texts = _texts()
    clock = parse_clock(_ticks()) if any(texts.values()) else None
    return {name: parse(text, clock) for name, text in texts.items()}


def _texts() -> dict[str, str]:
    """The lists of this thread's namespace; empty when the kernel has no such lists."""
    try:
        return {path.name: path.read_text(encoding="ascii") for path in _LISTS.iterdir()}
    except OSError:
        return {}


def _ticks() -> str:
    try:
        return _TIMERS.read_text(encoding="ascii")
    except OSError:
        return ""


def parse(text: str, clock: tuple[int, int] | None) -> dict[str, float]:
    """The addresses of one list; ``clock`` is (ticks now, ticks per second), None when unknown."""
    ages: dict[str, float] = {}
    for address, jiffies in _LINE.findall(text):
        ages[str(ip_address(address))] = max(0, clock[0] - int(jiffies)) / clock[1] if clock is not None else 0.0
    return ages


def parse_clock(text: str) -> tuple[int, int] | None:
    """Ticks now and ticks per second, from the text of ``/proc/timer_list``."""
    ticks = re.search(r"^jiffies: (\d+)", text, re.MULTILINE)
    now = re.search(r"^now at (\d+) nsecs", text, re.MULTILINE)
    if ticks is None or now is None:
        return None
    count, seconds = int(ticks[1]), int(now[1]) / 1e9
    since = (count - _WRAP) / (seconds - _START_S) if seconds != _START_S else 0.0
    return count, min(_RATES, key=lambda rate: abs(rate - since))
