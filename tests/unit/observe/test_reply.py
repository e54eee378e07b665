"""One GET, one answer; over a socket also what is not a request."""

import asyncio

from podwire.observe.reply import HEAD_LIMIT, reply, response, talk


def page(path: str) -> bytes:
    return response("200 OK", path.encode(), "text/x", {"X-Extra": "1"})


def test_the_answer_whole() -> None:
    assert reply(b"GET /a?b HTTP/1.1\r\n\r\n", page) == (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/x\r\ncontent-length: 2\r\nconnection: close\r\nX-Extra: 1\r\n\r\n/a"
    )
    assert reply(b"POST /a HTTP/1.1\r\n\r\n", page).startswith(b"HTTP/1.1 405 ")


def test_a_socket_is_answered_and_closed_whatever_comes() -> None:
    async def scenario() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await talk(page, reader, writer)

        async def ask(sent: bytes) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            writer.write_eof()
            try:
                return await reader.read()
            except ConnectionResetError:
                return b""
            finally:
                writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0, limit=HEAD_LIMIT) as server:
            port = server.sockets[0].getsockname()[1]
            assert (await ask(b"GET /x HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\n/x")
            assert await ask(b"GET /x") == b""
            assert await ask(b"x" * (3 * HEAD_LIMIT)) == b""

    asyncio.run(scenario())
