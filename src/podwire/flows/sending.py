"""Sends numbered flows to targets and reports their counts; blocking, one thread.

Every interval each flow sends a number. Every second the sender says its counts as one line of JSON: the last line of
its log is the report. A process that sends 20 numbers a second in each of 20 flows takes about 3 % of a processor.
"""

import contextlib
import json
import selectors
import socket
from collections.abc import Callable, Iterable, Sequence
from ipaddress import ip_address

import msgspec

from podwire.dns.names import encode_name
from podwire.errors import ConfigError, ProtocolError
from podwire.flows.connections import open_flow
from podwire.flows.count import LOST_S, FlowReport, FlowTarget
from podwire.flows.messages import PORT, SIZE
from podwire.runtime.clock import SystemClock

TURN_S = 0.05
"""Seconds between two messages of a flow, unless another interval is set."""
REPORT_S = 1.0
_PLAIN_KINDS = ("tcp", "udp", "new")


def targets_of(address: str, port: int = PORT) -> list[FlowTarget]:
    """The flows to the server of numbers at an address."""
    kinds: tuple[str, ...] = _PLAIN_KINDS
    return [msgspec.convert({"kind": kind, "address": address, "port": port}, FlowTarget) for kind in kinds]


def parse_targets(arguments: Iterable[str]) -> list[FlowTarget]:
    """The flows of arguments of the command line: addresses, and targets as objects of JSON.

    Raises: ConfigError.
    """
    targets: list[FlowTarget] = []
    for argument in arguments:
        try:
            if argument.startswith("{"):
                target = msgspec.json.decode(argument, type=FlowTarget)
                ip_address(target.address)
                encode_name(target.name)
                targets.append(target)
            else:
                ip_address(argument)
                targets += targets_of(argument)
        except (ValueError, ProtocolError) as failure:
            raise ConfigError("TARGET", "", f"{argument}: {failure}") from failure
    return targets


def write_targets(targets: Iterable[FlowTarget]) -> list[str]:
    """The arguments of the command line for targets."""
    return [json.dumps(msgspec.to_builtins(target)) for target in targets]


def send(
    targets: Sequence[FlowTarget],
    say: Callable[[str], None],
    *,
    interval_s: float = TURN_S,
    ended: Callable[[int], bool] = lambda _turns: False,
) -> None:
    """Sends to all targets and says the counts every second, and when ``ended`` holds for the number of turns."""
    clock = SystemClock()
    began = clock.monotonic()
    epoch = clock.now().timestamp() - began
    flows = [open_flow(target, began, epoch) for target in targets]
    due, done = began + REPORT_S, 0
    with selectors.DefaultSelector() as pause, contextlib.ExitStack() as stack:
        for flow in flows:
            stack.callback(flow.close)
        while not ended(done):
            now = clock.monotonic()
            for flow in flows:
                flow.turn(now)
            if now >= due:
                due = now + REPORT_S
                say(render(flow.count.report(now) for flow in flows))
            done += 1
            pause.select(max(0.0, now + interval_s - clock.monotonic()))
    now = clock.monotonic()
    say(render(flow.count.report(now) for flow in flows))


def render(reports: Iterable[FlowReport]) -> str:
    """Reports as one line."""
    return msgspec.json.encode(list(reports)).decode()


def parse(log: str) -> list[FlowReport]:
    """The reports in the last complete line of a log; none when there is no such line."""
    for line in reversed(log.splitlines()):
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.decode(line, type=list[FlowReport])
    return []


def unreachable(targets: Sequence[str], patience_s: float, port: int = PORT) -> list[str]:
    """The targets that answered no message over TCP within the time, with the reasons."""
    clock, problems = SystemClock(), dict[str, str]()
    until = clock.monotonic() + patience_s
    pending = list(targets)
    with selectors.DefaultSelector() as pause:
        while pending:
            for target in list(pending):
                try:
                    with socket.create_connection((target, port), timeout=LOST_S) as connection:
                        connection.sendall(bytes(SIZE))
                        if len(connection.recv(SIZE)) == SIZE:
                            pending.remove(target)
                            problems.pop(target, None)
                            continue
                    problems[target] = "no answer"
                except OSError as failure:
                    problems[target] = failure.strerror or str(failure)
            if clock.monotonic() > until:
                break
            if pending:
                pause.select(0.2)
    return [f"{target}: {reason}" for target, reason in problems.items()]
