"""The cache of foreign names."""

import dns.message
import dns.rcode
import dns.rrset

from podwire.dns.config import CacheConfig, DnsConfig
from podwire.dns.foreign import ForeignCache, ForeignCaches
from podwire.dns.names import encode_name


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


def test_reply_stays_the_same_for_a_second_or_its_life() -> None:
    cache = ForeignCache(CacheConfig(success_seconds=5.5))
    query, reply = pair("www.example. 10 IN A 192.0.2.1")
    assert cache.fresh(query, tcp=False, now_s=100.0) is None
    cache.put(query, reply, tcp=False, now_s=100.25)
    ends = [cache.fresh(query, tcp=False, now_s=now_s) for now_s in (100.25, 101.0, 101.25, 105.5, 105.75)]
    assert [end and end.until_s for end in ends] == [101.25, 101.25, 102.25, 105.75, None]


def test_reply_that_may_be_prefetched_comes_from_the_cache() -> None:
    cache = ForeignCache(CacheConfig(prefetch_amount=2))
    query, reply = pair("www.example. 10 IN A 192.0.2.1")
    cache.put(query, reply, tcp=False, now_s=0.0)
    assert cache.fresh(query, tcp=False, now_s=0.0) is None


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


def test_popular_name_is_asked_for_again_once_before_it_expires() -> None:
    cache = ForeignCache(CacheConfig(prefetch_amount=3, prefetch_seconds=60.0, prefetch_percent=20))
    query, reply = pair("www.example. 100 IN A 192.0.2.1")
    cache.put(query, reply, tcp=False, now_s=0.0)
    asked = []
    for now_s in (10.0, 50.0, 79.0, 81.0, 90.0):
        assert cache.get(query, tcp=False, now_s=now_s) is not None
        asked.append(cache.due(query, tcp=False, now_s=now_s))
    assert asked == [False, False, False, True, False] and cache.prefetches == 1


def test_name_with_long_pauses_is_not_asked_for_again() -> None:
    cache = ForeignCache(CacheConfig(prefetch_amount=2, prefetch_seconds=5.0))
    query, reply = pair("www.example. 100 IN A 192.0.2.1")
    cache.put(query, reply, tcp=False, now_s=0.0)
    for now_s in (10.0, 50.0, 95.0):
        cache.get(query, tcp=False, now_s=now_s)
    assert not cache.due(query, tcp=False, now_s=95.0)


def test_times_of_replies_have_a_floor_and_a_ceiling() -> None:
    cache = ForeignCache(CacheConfig(success_seconds=50.0, success_least_seconds=20.0))
    for ttl, last_s in ((1, 20.0), (30, 30.0), (900, 50.0)):
        query, reply = pair(f"www{ttl}.example. {ttl} IN A 192.0.2.1")
        cache.put(query, reply, tcp=False, now_s=0.0)
        assert cache.get(query, tcp=False, now_s=last_s - 0.1) is not None
        assert cache.get(query, tcp=False, now_s=last_s) is None


def test_failures_are_cached_only_if_configured() -> None:
    query, reply = pair("www.example. 100 IN A 192.0.2.1")
    failed = reply[:3] + bytes([reply[3] & 0xF0 | 2]) + reply[4:]
    for seconds, kept in ((0.0, False), (5.0, True)):
        cache = ForeignCache(CacheConfig(failure_seconds=seconds))
        cache.put(query, failed, tcp=False, now_s=0.0)
        assert (cache.get(query, tcp=False, now_s=4.0) is not None) == kept


def test_zones_have_caches_of_their_own() -> None:
    config = DnsConfig(cache_seconds=30.0, caches={"corp.example": CacheConfig(success_seconds=5.0)})
    caches = ForeignCaches(config)
    assert [zone for zone, _ in caches.by_zone()] == [".", "corp.example."]
    assert caches.choose(encode_name("a.Corp.example")).config.success_seconds == 5.0
    assert caches.choose(encode_name("a.example")).config.success_seconds == 30.0
