"""Calls of methods on D-Bus: one connection of the system bus for each call, with a limit of time.

The library jeepney encodes messages and authenticates; reading and writing stand here, because its own connections may
wait without a limit. A call costs about a millisecond and the time that the program takes to answer.
Source: D-Bus Specification 0.43, "Message Protocol" and "Authentication Protocol".
"""

import errno
import os
import socket
from typing import Any

from jeepney import DBusAddress, HeaderFields, Message, MessageType, message_bus, new_method_call
from jeepney.auth import BEGIN, AuthenticationError, Authenticator
from jeepney.bus import get_connectable_addresses
from jeepney.low_level import Parser

from podwire.errors import KernelError, KernelNotFound

_DEFAULT = "unix:path=/run/dbus/system_bus_socket"
_TIMEOUT_S = 5.0
"""A program answers within this time, or the call fails. The agent does nothing else meanwhile: two calls, for a pod
with both families, are shorter than the lease of the kernel's DNS answers (15 s)."""
_SIZE = 4096


class DBusError(KernelError):
    """A program on the bus answered a call with an error; ``name`` is the name of the error."""

    def __init__(self, subject: str, name: str, text: str) -> None:
        self.name = name
        self.text = text
        super().__init__("call", subject, errno.EREMOTEIO, f"{name}: {text}")


def address() -> str:
    """The path of the system bus's socket; empty when ``$DBUS_SYSTEM_BUS_ADDRESS`` names no socket of this machine."""
    try:
        return str(next(iter(get_connectable_addresses(os.environ.get("DBUS_SYSTEM_BUS_ADDRESS") or _DEFAULT))))
    except (RuntimeError, ValueError):
        return ""


def has_owner(name: str) -> bool:
    """Whether a program has the name on the bus; False without a bus."""
    try:
        (owned,) = _call(message_bus.NameHasOwner(name), f"NameHasOwner({name})")
    except KernelNotFound:
        return False
    return bool(owned)


def call(target: DBusAddress, method: str, *arguments: str) -> tuple[Any, ...]:
    """Calls a method whose arguments are texts; returns the answer's values.

    Raises: KernelNotFound without a bus; DBusError; KernelError when no answer comes.
    """
    signature = "s" * len(arguments)
    subject = f"{target.interface}.{method}({', '.join(arguments)})"
    return _call(new_method_call(target, method, signature, arguments), subject)


def _call(message: Message, subject: str) -> tuple[Any, ...]:
    path = address()
    try:
        with socket.socket(socket.AF_UNIX) as bus:
            bus.settimeout(_TIMEOUT_S)
            bus.connect(path)
            _authenticate(bus)
            parser = Parser()
            _exchange(bus, parser, message_bus.Hello(), 1, "Hello()")
            return _exchange(bus, parser, message, 2, subject)
    except (FileNotFoundError, ConnectionRefusedError) as failure:
        raise KernelNotFound("connect to", f"D-Bus {path}", failure.errno or 0, "no bus answers") from failure
    except TimeoutError as failure:
        raise KernelError("call", subject, errno.ETIMEDOUT, f"no answer within {_TIMEOUT_S:g} s") from failure
    except (OSError, AuthenticationError) as failure:
        raise KernelError("call", subject, getattr(failure, "errno", 0) or errno.EIO, str(failure)) from failure


def _authenticate(bus: socket.socket) -> None:
    bus.sendall(b"\0")
    authenticator = Authenticator(inc_null_byte=False)
    for request in authenticator:
        bus.sendall(request)
        authenticator.feed(_read(bus))
    bus.sendall(BEGIN)


def _exchange(bus: socket.socket, parser: Parser, message: Message, serial: int, subject: str) -> tuple[Any, ...]:
    """Sends a message and returns the values of its answer; other messages are skipped."""
    bus.sendall(message.serialise(serial=serial))
    while True:
        answer = parser.get_next_message()
        if answer is None:
            parser.add_data(_read(bus))
            continue
        fields = answer.header.fields
        if fields.get(HeaderFields.reply_serial) != serial:
            continue
        if answer.header.message_type is MessageType.error:
            name, texts = fields.get(HeaderFields.error_name, ""), [x for x in answer.body if isinstance(x, str)]
            raise DBusError(subject, str(name), texts[0] if texts else "")
        return tuple(answer.body)


def _read(bus: socket.socket) -> bytes:
    if data := bus.recv(_SIZE):
        return data
    raise ConnectionResetError(errno.ECONNRESET, "the bus closed the connection")
