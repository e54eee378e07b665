"""A backend that keeps every byte that it gets, and answers requests as a strict reader of HTTP/1.1 counts them."""

import re
import socket
import threading

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class RawBackend:
    """Takes connections until it is closed; ``received`` has the bytes of each."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self.received: list[bytearray] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the server."""
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        data = bytearray()
        self.received.append(data)
        answered = 0
        with connection:
            while chunk := connection.recv(65536):
                data += chunk
                for _ in range(len(requests_of(bytes(data))) - answered):
                    connection.sendall(_ANSWER)
                    answered += 1


def requests_of(data: bytes) -> list[bytes]:
    """The complete requests in a stream, each with its body: lines end with CR LF alone."""
    requests = []
    while (end := _length(data)) is not None:
        requests.append(data[:end])
        data = data[end:]
    return requests


def head_of(request: bytes) -> bytes:
    """A request up to the end of its headers."""
    return request.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"


def _length(data: bytes) -> int | None:
    """The length of the first request in a stream; None while it is not complete."""
    if b"\r\n\r\n" not in data:
        return None
    head = head_of(data)
    if re.search(rb"(?i)\r\ntransfer-encoding: *chunked\r\n", head):
        return _length_of_chunks(data, len(head))
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)\r\n", head)
    end = len(head) + (int(length[1]) if length else 0)
    return end if end <= len(data) else None


def _length_of_chunks(data: bytes, start: int) -> int | None:
    while (line_end := data.find(b"\r\n", start)) >= 0:
        size = int(data[start:line_end].partition(b";")[0], 16)
        start = line_end + 2 + size + (2 if size else 0)
        if size == 0:
            end = data.find(b"\r\n\r\n", line_end)
            return end + 4 if end >= 0 else None
    return None
