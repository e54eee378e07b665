"""Runs a command as on a kernel without nftables: nfnetlink sockets are refused.

A seccomp filter answers ``socket(AF_NETLINK, _, NETLINK_NETFILTER)`` with EPROTONOSUPPORT, for the process and its
children. Sources: seccomp(2), linux/filter.h, linux/seccomp.h.
"""

import ctypes
import errno
import os
import struct
import sys

_SOCKET = {"x86_64": 41, "aarch64": 198, "riscv64": 198}
_AF_NETLINK, _NETLINK_NETFILTER = 16, 12
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_MODE_FILTER = 22, 38, 2
_LOAD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER, _DOMAIN, _PROTOCOL = 0, 16, 32
"""Offsets in struct seccomp_data: number of the call, first and third argument."""


def _program() -> bytes:
    steps = [
        (_LOAD, 0, 0, _NUMBER), (_JUMP_EQUAL, 0, 5, _SOCKET[os.uname().machine]),
        (_LOAD, 0, 0, _DOMAIN), (_JUMP_EQUAL, 0, 3, _AF_NETLINK),
        (_LOAD, 0, 0, _PROTOCOL), (_JUMP_EQUAL, 0, 1, _NETLINK_NETFILTER),
        (_RETURN, 0, 0, _ERRNO | errno.EPROTONOSUPPORT), (_RETURN, 0, 0, _ALLOW),
    ]  # fmt: skip
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def main() -> None:
    program = ctypes.create_string_buffer(_program())
    header = ctypes.create_string_buffer(struct.pack("@HP", len(_program()) // 8, ctypes.addressof(program)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header):
        raise OSError(ctypes.get_errno(), "prctl")
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
