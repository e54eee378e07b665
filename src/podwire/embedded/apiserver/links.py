"""Rewrites links in pages of pods and nodes behind the API's proxy, so that the links lead through the proxy again.

A link with an absolute path refers to the root of the pod's server. For a client of the proxy, this root is the path up
to ``.../proxy``. The ``Location`` header and the attributes of HTML tags that hold URLs are rewritten. Relative links
and links to other hosts stay unchanged, and so does all other text of the page.
Source: ``k8s.io/apimachinery/pkg/util/proxy/transport.go``.
"""

import posixpath
import zlib
from html import escape
from html.parser import HTMLParser
from urllib.parse import urlsplit, urlunsplit

import msgspec

_ATTRIBUTES: dict[str, frozenset[str]] = {
    tag: frozenset(attributes.split())
    for attributes, tags in (
        ("href", "a area base link"),
        ("src", "audio script source"),
        ("cite", "blockquote del ins q"),
        ("longdesc src", "frame iframe"),
        ("poster src", "video"),
        ("codebase", "applet"),
        ("background", "body"),
        ("formaction", "button"),
        ("icon", "command"),
        ("src", "embed"),
        ("action", "form"),
        ("profile", "head"),
        ("manifest", "html"),
        ("longdesc src usemap", "img"),
        ("src usemap formaction", "input"),
        ("classid codebase data usemap", "object"),
    )
    for tag in tags.split()
}
"""The attributes that hold a URL, by tag."""


class ProxiedRoot(msgspec.Struct, frozen=True):
    """The root of a proxied server, as the client sees it."""

    prefix: str
    """The path up to ``/proxy``."""
    hosts: frozenset[str]
    """The hosts of the server itself: its address with port, and the host that the client asked."""

    def rewrite_url(self, text: str) -> str:
        """The link as the client has to follow it; unchanged when it is relative, foreign or no URL."""
        try:
            url = urlsplit(text)
        except ValueError:
            return text
        if (url.netloc and url.netloc not in self.hosts) or not url.path.startswith("/"):
            return text
        path = url.path
        if not path.startswith(self.prefix):
            path = posixpath.normpath(self.prefix + path) + ("/" if url.path.endswith("/") else "")
        return urlunsplit(("", "", path, url.query, url.fragment))

    def rewrite_html(self, page: str) -> str:
        """The page with its links rewritten."""
        tags = _Tags(self)
        tags.feed(page)
        tags.close()
        starts = [0]
        for line in page.split("\n"):
            starts.append(starts[-1] + len(line) + 1)
        chunks, end = [], 0
        for number, column, old, new in tags.changes:
            start = starts[number - 1] + column
            chunks += [page[end:start], new]
            end = start + len(old)
        return "".join([*chunks, page[end:]])


def rewrite_body(body: bytes, encoding: str, root: ProxiedRoot) -> bytes:
    """The body of a page in the same encoding with its links rewritten; unchanged in an unknown encoding."""
    windows = {"": 0, "gzip": 16 + zlib.MAX_WBITS, "deflate": -zlib.MAX_WBITS}.get(encoding)
    if windows is None:
        return body
    try:
        page = zlib.decompress(body, windows) if windows else body
    except zlib.error:
        return body
    page = root.rewrite_html(page.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    if not windows:
        return page
    compressor = zlib.compressobj(wbits=windows)
    return compressor.compress(page) + compressor.flush()


class _Tags(HTMLParser):
    """Finds the tags whose links change: line, column, old and new text."""

    def __init__(self, root: ProxiedRoot) -> None:
        super().__init__(convert_charrefs=False)
        self._root = root
        self.changes: list[tuple[int, int, str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes the tag when one of its links changes."""
        self._record(tag, attrs, ">")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes a tag that ends itself when one of its links changes."""
        self._record(tag, attrs, "/>")

    def _record(self, tag: str, attrs: list[tuple[str, str | None]], end: str) -> None:
        with_urls = _ATTRIBUTES.get(tag, frozenset())
        changed = [
            (name, self._root.rewrite_url(value) if name in with_urls and value is not None else value)
            for name, value in attrs
        ]
        old = self.get_starttag_text()
        if changed == attrs or old is None:
            return
        attributes = [tag, *(name if value is None else f'{name}="{escape(value)}"' for name, value in changed)]
        self.changes.append((*self.getpos(), old, f"<{' '.join(attributes)}{end}"))
