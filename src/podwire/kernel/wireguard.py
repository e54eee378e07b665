"""WireGuard devices: those of the kernel by generic netlink, and those of a process by the socket of the process.

A value without ``control`` is a device of the kernel in the namespace. A process forgets its configuration when it
ends. :func:`apply` reads the device, writes the difference, and writes nothing when there is none. Cost: one exchange
for reading, one for writing; a peer is about 300 bytes of text, or 150 of netlink.
"""

import contextlib
import errno
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from podwire.errors import KernelError, KernelNotFound, ProtocolError
from podwire.kernel import wireguard_codec, wireguard_messages, x25519
from podwire.kernel.failure import refusal
from podwire.kernel.generic_netlink import GenericNetlink
from podwire.kernel.netns import NetnsPath
from podwire.state.wireguard import WireGuard, WireGuardMark, WireGuardPeer, key_bytes

_ANSWER_S = 2.0
"""Time after which a process that does not answer counts as broken."""


class _Reading(NamedTuple):
    """What a device says of itself."""

    private_key: bytes
    port: int
    peers: tuple[WireGuardPeer, ...]
    sessions: frozenset[str]


def read(netns_path: NetnsPath, marks: Iterable[WireGuardMark]) -> tuple[WireGuard, ...]:
    """The devices that exist, and whose process runs.

    The file of the private key is named in the value when the device has the key of that file.

    Raises: KernelError.
    """
    devices = []
    for mark in marks:
        with contextlib.suppress(KernelNotFound):
            devices.append(_read(netns_path, mark))
    return tuple(devices)


def sessions(netns_path: NetnsPath, devices: Iterable[WireGuard]) -> frozenset[str]:
    """The public keys of the peers that have shaken hands; those of a device that does not answer are left out."""
    keys: set[str] = set()
    for device in devices:
        with contextlib.suppress(KernelError):
            keys.update(_look(netns_path, device.device, device.control).sessions)
    return frozenset(keys)


def _look(netns_path: NetnsPath, device: str, control: str) -> _Reading:
    try:
        if not control:
            with GenericNetlink(netns_path, wireguard_messages.GENL_NAME) as netlink:
                body = wireguard_messages.encode_get(device)
                payloads = netlink.dump(body, "read", f"wireguard {device}")
            return _Reading(*wireguard_messages.decode(payloads))
        answer = _exchange(device, control, wireguard_codec.GET)
        private, port, peers = wireguard_codec.parse(answer)
        return _Reading(private, port, peers, frozenset(wireguard_codec.sessions(answer)))
    except (ValueError, ProtocolError) as failure:
        raise refusal("read", f"wireguard {device}", errno.EPROTO, str(failure)) from failure


def _read(netns_path: NetnsPath, mark: WireGuardMark) -> WireGuard:
    private, port, peers, _ = _look(netns_path, mark.device, mark.control)
    public = _public_text(private) if any(private) else ""
    return WireGuard(
        device=mark.device,
        port=port,
        public_key=public,
        private_key_file=mark.private_key_file if public and public == _file_keys(mark.private_key_file)[1] else "",
        control=mark.control,
        peers=peers,
    )


def apply(netns_path: NetnsPath, desired: WireGuard) -> tuple[str, ...]:
    """Makes a device as desired; returns the lines that were added.

    Raises: KernelNotFound while the device does not exist or its process does not run; KernelError, also when the file
    has another key.
    """
    private, public = _file_keys(desired.private_key_file)
    if public != desired.public_key or not public:
        problem = f"{desired.private_key_file} does not hold the private key of {desired.public_key}"
        raise refusal("set", f"wireguard {desired.device}", errno.EKEYREJECTED, problem)
    present = _read(netns_path, WireGuardMark(desired.device, desired.control, desired.private_key_file))
    if desired.control:
        if request := wireguard_codec.request(present, desired, private):
            _exchange(desired.device, desired.control, request)
    elif bodies := wireguard_messages.encode_set(present, desired, private):
        with GenericNetlink(netns_path, wireguard_messages.GENL_NAME) as netlink:
            netlink.request(bodies, "configure", f"wireguard {desired.device}")
    return tuple(_added(present, desired))


def _added(present: WireGuard, desired: WireGuard) -> Iterator[str]:
    old = set(present.lines())
    return (line for line in desired.lines() if line not in old)


def differs(netns_path: NetnsPath, desired: Iterable[WireGuard]) -> bool:
    """Whether a device is not as desired; one that does not answer is."""
    for device in desired:
        try:
            if _read(netns_path, WireGuardMark(device.device, device.control, device.private_key_file)) != device:
                return True
        except KernelError:
            return True
    return False


def _file_keys(file: str) -> tuple[bytes, str]:
    """The private key in a file and the text of its public key; both empty when the file has no key."""
    try:
        private = key_bytes(Path(file).read_text(encoding="ascii").strip())
    except (OSError, ValueError):
        return b"", ""
    return private, _public_text(private)


def _public_text(private: bytes) -> str:
    return wireguard_codec.base64_key(x25519.public_key(private))


def _exchange(device: str, control: str, request: str) -> str:
    """Sends one request to the process of a device and returns its answer.

    The socket is reached by its folder's descriptor, because the path of a socket has at most 107 bytes.
    """
    folder, name = os.path.split(control)
    try:
        with contextlib.ExitStack() as stack:
            descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            connection = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            connection.settimeout(_ANSWER_S)
            connection.connect(f"/proc/self/fd/{descriptor}/{name}")
            connection.sendall(request.encode("ascii"))
            answer, number = b"", None
            while number is None:
                part = connection.recv(1 << 16)
                answer += part
                number = wireguard_codec.error_number(answer[-64:].decode()) if part else errno.EPIPE
    except OSError as failure:
        missing = isinstance(failure, FileNotFoundError | ConnectionRefusedError)
        number = errno.ENODEV if missing else failure.errno or errno.ETIMEDOUT
        raise refusal("reach", f"wireguard {device}", number, f"its process does not answer on {control}") from failure
    if number:
        raise refusal("configure", f"wireguard {device}", abs(number))
    return answer.decode()
