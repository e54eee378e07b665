"""The cache of foreign names."""

import dns.message
import dns.rcode
import dns.rrset

from podwire.dns.config import CacheConfig
from podwire.dns.foreign import ForeignCache


def pair(answer: str = "", authority: str = "", rcode: str = "NOERROR", flags: str = "QR") -> tuple[bytes, bytes]:
    query = dns.message.make_query("www.example.", "A", id=1)
    text = (
        f"id 1\nopcode QUERY\nrcode {rcode}\nflags {flags}\n;QUESTION\nwww.example. IN A\n"
        f";ANSWER\n{answer}{answer and chr(10)};AUTHORITY\n{authority}{authority and chr(10)}"
    )
    return query.to_wire(), dns.message.from_text(text).to_wire()


def test_an_entry_lives_for_its_smallest_ttl_and_counts_down() -> None:
    cache = ForeignCache()
    query, reply = pair("www.example. 30 IN CNAME w.example.\nw.example. 10 IN A 192.0.2.1")
    cache.put(query, reply, tcp=False, now_s=100.0)
    remaining = cache.get(b"\xab\xcd" + query[2:], tcp=False, now_s=104.5)
    assert remaining is not None and remaining.data[:2] == b"\xab\xcd"
    assert [rrset.ttl for rrset in dns.message.from_wire(remaining.data).answer] == [26, 6]
    assert cache.get(query, tcp=True, now_s=104.5) is None
    assert cache.get(query, tcp=False, now_s=110.0) is None
    assert len(cache) == 0
    assert (cache.hits, cache.misses) == ([1, 0], 2)


def test_a_negative_reply_lives_by_its_soa() -> None:
    cache = ForeignCache()
    query, reply = pair(authority="example. 900 IN SOA a. b. 1 2 3 4 20", rcode="NXDOMAIN")
    cache.put(query, reply, tcp=False, now_s=0.0)
    assert cache.get(query, tcp=False, now_s=19.9) is not None
    assert cache.get(query, tcp=False, now_s=20.0) is None


def test_failures_and_truncated_replies_are_not_cached() -> None:
    for query, reply in (
        pair(rcode="NXDOMAIN"),
        pair(rcode="SERVFAIL"),
        pair("www.example. 30 IN A 192.0.2.1", flags="QR TC"),
        pair("www.example. 0 IN A 192.0.2.1"),
    ):
        cache = ForeignCache()
        cache.put(query, reply, tcp=False, now_s=0.0)
        assert len(cache) == 0
    cache.put(query, reply[:-3], tcp=False, now_s=0.0)
    assert len(cache) == 0


def test_no_entry_outlives_the_ceiling_and_the_oldest_goes_first() -> None:
    cache = ForeignCache(CacheConfig(success_capacity=2, success_seconds=60.0))
    query, reply = pair("www.example. 86400 IN A 192.0.2.1")
    for flag in b"\x01\x03\x05":
        cache.put(query[:2] + bytes([flag]) + query[3:], reply, tcp=False, now_s=0.0)
    assert len(cache) == 2
    assert cache.get(query[:2] + b"\x01" + query[3:], tcp=False, now_s=1.0) is None
    assert cache.get(query[:2] + b"\x05" + query[3:], tcp=False, now_s=59.0) is not None
    assert cache.get(query[:2] + b"\x05" + query[3:], tcp=False, now_s=60.0) is None


def test_expired_entry_is_kept_for_a_while_with_zero_ttls() -> None:
    cache = ForeignCache(CacheConfig(serve_stale_seconds=100.0))
    query, reply = pair("www.example. 10 IN A 192.0.2.1")
    cache.put(query, reply, tcp=False, now_s=0.0)
    assert cache.get(query, tcp=False, now_s=11.0) is None
    stale = cache.stale(query, tcp=False, now_s=109.0)
    assert stale is not None and [rrset.ttl for rrset in dns.message.from_wire(stale.data).answer] == [0]
    assert cache.stale(query, tcp=False, now_s=110.0) is None
    assert ForeignCache().stale(query, tcp=False, now_s=0.0) is None
