"""WireGuard devices that a process in user space runs, configured by the socket of the process.

The process forgets its configuration when it ends. :func:`apply` reads the device, writes the difference, and writes
nothing when there is none. Cost: one exchange for reading, one for writing; a peer is about 300 bytes of text.
"""

import contextlib
import errno
import os
import socket
from collections.abc import Iterable
from pathlib import Path

from podwire.errors import KernelError, KernelNotFound
from podwire.kernel import wireguard_codec, x25519
from podwire.kernel.failure import refusal
from podwire.state.wireguard import WireGuard, WireGuardMark, key_bytes

_ANSWER_S = 2.0
"""Time after which a process that does not answer counts as broken."""


def read(marks: Iterable[WireGuardMark]) -> tuple[WireGuard, ...]:
    """The devices whose process runs.

    The file of the private key is named in the value when the device has the key of that file.

    Raises: KernelError.
    """
    devices = []
    for mark in marks:
        with contextlib.suppress(KernelNotFound):
            devices.append(_read(mark))
    return tuple(devices)


def sessions(devices: Iterable[WireGuard]) -> frozenset[str]:
    """The public keys of the peers that have shaken hands; those of a process that does not answer are left out."""
    keys: set[str] = set()
    for device in devices:
        with contextlib.suppress(KernelError, ValueError):
            keys.update(wireguard_codec.sessions(_exchange(device.device, device.control, wireguard_codec.GET)))
    return frozenset(keys)


def _read(mark: WireGuardMark) -> WireGuard:
    subject = f"wireguard {mark.device}"
    answer = _exchange(mark.device, mark.control, wireguard_codec.GET)
    try:
        private, port, peers = wireguard_codec.parse(answer)
    except ValueError as failure:
        raise refusal("read", subject, errno.EPROTO, str(failure)) from failure
    public = _public_text(private) if any(private) else ""
    return WireGuard(
        device=mark.device,
        port=port,
        public_key=public,
        private_key_file=mark.private_key_file if public and public == _file_keys(mark.private_key_file)[1] else "",
        control=mark.control,
        peers=peers,
    )


def apply(desired: WireGuard) -> tuple[str, ...]:
    """Makes a device as desired; returns the lines that were added.

    Raises: KernelNotFound while the process does not run; KernelError, also when the file has another key.
    """
    private, public = _file_keys(desired.private_key_file)
    if public != desired.public_key or not public:
        problem = f"{desired.private_key_file} does not hold the private key of {desired.public_key}"
        raise refusal("set", f"wireguard {desired.device}", errno.EKEYREJECTED, problem)
    present = _read(WireGuardMark(desired.device, desired.control, desired.private_key_file))
    if request := wireguard_codec.request(present, desired, private):
        _exchange(desired.device, desired.control, request)
    old = set(present.lines())
    return tuple(line for line in desired.lines() if line not in old) if request else ()


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
