"""Links of pages that come through the API's proxy."""

import gzip
import zlib

import pytest

from podwire.embedded.apiserver.links import ProxiedRoot, rewrite_body

PREFIX = "/api/v1/namespaces/default/pods/p/proxy"
ROOT = ProxiedRoot(PREFIX, frozenset({"10.244.0.5:80", "127.0.0.1:6443"}))

URLS = {
    "/": f"{PREFIX}/",
    "/a/b?x=1&y=2#z": f"{PREFIX}/a/b?x=1&y=2#z",
    "/a/../b/": f"{PREFIX}/b/",
    "http://10.244.0.5:80/a": f"{PREFIX}/a",
    "https://127.0.0.1:6443/a": f"{PREFIX}/a",
    f"{PREFIX}/a": f"{PREFIX}/a",
    "a/b": "a/b",
    "?x=1": "?x=1",
    "#top": "#top",
    "": "",
    "mailto:a@example.com": "mailto:a@example.com",
    "http://example.com/a": "http://example.com/a",
    "//example.com/a": "//example.com/a",
    "http://[half/a": "http://[half/a",
}


@pytest.mark.parametrize("url", URLS)
def test_absolute_paths_lead_through_the_proxy(url: str) -> None:
    assert ROOT.rewrite_url(url) == URLS[url]


PAGES = {
    "<a href='/a'>x</a >": f'<a href="{PREFIX}/a">x</a >',
    '<A\n HREF="/a?x=1&amp;y=2" id=b>x</A>': f'<a href="{PREFIX}/a?x=1&amp;y=2" id="b">x</A>',
    "<img src=/i.png/>": f'<img src="{PREFIX}/i.png/">',
    '<img src="/i.png" hidden />': f'<img src="{PREFIX}/i.png" hidden/>',
    '<form action="/save"><button formaction="/b">': f'<form action="{PREFIX}/save"><button formaction="{PREFIX}/b">',
    "é\r\n<p>ü<link href='/s.css'>\n\n<script src='/s.js'>if (a < b) '<a href=\"/no\">'</script>": (
        f'é\r\n<p>ü<link href="{PREFIX}/s.css">\n\n<script src="{PREFIX}/s.js">if (a < b) \'<a href="/no">\'</script>'
    ),
    "<!-- <a href='/a'> --><p title='/a'>&lt;/a&gt; <a href='rel'><a href='http://example.com/'><b": (
        "<!-- <a href='/a'> --><p title='/a'>&lt;/a&gt; <a href='rel'><a href='http://example.com/'><b"
    ),
}


@pytest.mark.parametrize("page", PAGES)
def test_only_tags_with_changed_links_are_written_anew(page: str) -> None:
    assert ROOT.rewrite_html(page) == PAGES[page]


def test_bodies_keep_their_encoding() -> None:
    page, expected = b"<a href='/a'>\xff", f'<a href="{PREFIX}/a">'.encode() + b"\xff"
    assert rewrite_body(page, "", ROOT) == expected
    assert gzip.decompress(rewrite_body(gzip.compress(page), "gzip", ROOT)) == expected
    raw = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    deflated = raw.compress(page) + raw.flush()
    assert zlib.decompress(rewrite_body(deflated, "deflate", ROOT), -zlib.MAX_WBITS) == expected
    assert rewrite_body(page, "gzip", ROOT) == rewrite_body(page, "br", ROOT) == page
