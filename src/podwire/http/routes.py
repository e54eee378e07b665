"""Routes as data: a handler for each path, for servers whose pages have fixed paths."""

from collections.abc import Awaitable, Mapping

from podwire.http.answer import Handler, Result
from podwire.http.message import Request, text_response

Routes = Mapping[str, Handler]
"""Handlers by path, each for GET and HEAD."""


def dispatch(routes: Routes) -> Handler:
    """A handler that looks ``routes`` up at each request; its 404 answer names the existing paths."""

    def handle(request: Request) -> Result | Awaitable[Result]:
        if request.method not in ("GET", "HEAD"):
            return text_response(405, "only GET")
        handler = routes.get(request.path)
        if handler is None:
            return text_response(404, f"no page {request.path}; the pages are {' '.join(routes)}")
        return handler(request)

    return handle
