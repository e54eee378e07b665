#!/usr/bin/python3 -IS
"""The CNI program in Python, for machines without the compiled one; the same protocol as src/cni/podwire-cni.c.

Imports only what a bare interpreter has built in: ``socket`` alone would double the 10 ms that an isolated
interpreter takes to start (measured). It is run as a program by its path, never imported by the agent.
"""

import _socket
import posix
import sys
import time

ABOUT = (
    b"podwire-cni: hands CNI requests to the podwire agent of this node\n"
    b"CNI protocol versions supported: 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0\n"
)
VERSION = b'{"cniVersion":"1.1.0","supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}\n'
LIMIT = 4 << 20
STATUS_S = 5
ANSWER_S = 120
DEMAND = 253
"""The exit status by which the agent demands a plugin for addresses; src/cni/podwire-cni.c says how."""


def fail(code: int, message: bytes, details: bytes = b"") -> int:
    """Prints an error in the form of the CNI specification; returns the exit status."""
    posix.write(1, b'{"cniVersion":"1.0.0","code":%d,"msg":"%s","details":"%s"}\n' % (code, message, details))
    return 1


def connect(path: bytes, wait_s: int, answer_s: int) -> "_socket.socket | None":
    """A connection to the agent, or None when the agent does not listen within ``wait_s`` seconds.

    What is sent and received later takes at most ``answer_s`` seconds.
    """
    deadline = time.monotonic() + wait_s
    while True:
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        connection.settimeout(answer_s)
        try:
            connection.connect(path)
        except OSError:
            connection.close()
        else:
            return connection
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.02)


def send_request(connection: "_socket.socket", request: bytes, netns: bytes) -> None:
    """Sends the request, with the namespace's descriptor when it can be opened."""
    rights = []
    if netns:
        try:
            descriptor = posix.open(netns, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK)
            rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptor.to_bytes(4, sys.byteorder))]
        except OSError:
            pass
    sent = connection.sendmsg([request], rights)
    connection.sendall(request[sent:])
    connection.shutdown(_socket.SHUT_WR)


def receive(connection: "_socket.socket", code: int) -> bytes:
    """The answer with its exit status; without an answer an error with ``code``."""
    answer, detail = b"", b"the connection ended before an answer"
    try:
        while chunk := connection.recv(65536):
            answer += chunk
    except TimeoutError:
        detail = b"no answer came in time"
    if not answer:
        sys.exit(fail(code, b"the podwire agent did not finish the request, try again later", detail))
    return answer


def finish(answer: bytes) -> int:
    """Prints an answer; returns its exit status."""
    posix.write(1, answer[1:])
    return answer[0]


def run(verb: bytes, plugin: bytes, stdin: bytes) -> bytes:
    """Runs a plugin of CNI_PATH with a command; its exit status in three digits, a space, and its output."""
    for folder in posix.environ.get(b"CNI_PATH", b"").split(b":"):
        path = folder + b"/" + plugin
        if posix.access(path, posix.X_OK):
            break
    else:
        return b"127 "
    held = posix.memfd_create("stdin")
    while stdin:
        stdin = stdin[posix.write(held, stdin) :]
    posix.lseek(held, 0, 0)
    reader, writer = posix.pipe()
    redirected = [(posix.POSIX_SPAWN_DUP2, held, 0), (posix.POSIX_SPAWN_DUP2, writer, 1)]
    environment = {**posix.environ, b"CNI_COMMAND": verb}
    child = posix.posix_spawn(path, [path], environment, file_actions=redirected)
    posix.close(writer)
    output = b""
    while chunk := posix.read(reader, 65536):
        output += chunk
    status = posix.waitpid(child, 0)[1]
    return b"%03d %s" % (posix.WEXITSTATUS(status) if posix.WIFEXITED(status) else 128, output.replace(b"\0", b" "))


def main() -> int:
    """Handles one CNI call; returns the exit status."""
    variables = posix.environ
    command = variables.get(b"CNI_COMMAND", b"")
    if not command or command == b"VERSION":
        posix.write(1 if command else 2, VERSION if command else ABOUT)
        return 0
    stdin = b""
    while chunk := posix.read(0, 65536):
        stdin += chunk
    if len(stdin) > LIMIT:
        return fail(6, b"the network configuration is larger than 4 MiB")
    pairs = b"".join(name + b"=" + value + b"\0" for name, value in variables.items() if name.startswith(b"CNI_"))
    path = variables.get(b"PODWIRE_CNI_SOCKET") or b"/run/podwire/cni.sock"
    status = command == b"STATUS"
    wait = variables.get(b"PODWIRE_CNI_WAIT_S", b"")
    wait_s = min(int(wait), 600) if wait.isdigit() else 20
    wait_s = min(wait_s, STATUS_S) if status else wait_s
    code = 50 if status else 11
    for _ in range(2):
        connection = connect(path, wait_s, (wait_s or 1) if status else ANSWER_S)
        if connection is None and status:
            return fail(code, b"the podwire agent of this node does not answer", b"pods that run are not affected")
        if connection is None:
            return fail(code, b"the podwire agent of this node does not answer, try again later")
        try:
            send_request(connection, b"PODWIRE1\0" + pairs + b"\0" + stdin, variables.get(b"CNI_NETNS", b""))
            answer = receive(connection, code)
        except OSError:
            return fail(code, b"the podwire agent closed the connection, try again later")
        if answer[0] != DEMAND:
            return finish(answer)
        verb, plugin, final = answer[1:].split(b"\0", 2)
        outcome = run(verb, plugin, stdin)
        if final:
            return finish(final)
        pairs += b"CNI_PODWIRE_IPAM=" + outcome + b"\0"
    return fail(5, b"the podwire agent demands a plugin for addresses again and again")


if __name__ == "__main__":
    sys.exit(main())
