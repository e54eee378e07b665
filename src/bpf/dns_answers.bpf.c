// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
// Answers of the cluster's DNS zone, at the ingress of a pod's device on the node (tc).
//
// A query over UDP to port 53 of the DNS Service is answered in place: the reply is written over the query in the same
// packet, which goes back out of the device. Nothing after this hook sees the packet: no conntrack, no destination
// NAT, no scheduler. Every packet that is not such a query, and every query whose answer is not certain, goes up the
// stack unchanged, to the server.
//
// A name is looked up by its part before the zone, in lower case and padded with zeros. A name that is not in the map
// does not exist, with two exceptions: names below `pod`, and names below a Service that exists. Both go to the server.
// A name whose part before the zone is longer than a key is in no map; it does not exist unless the settings say that
// the zone has such names.
//
// With many names most of the time goes to misses of the processor's caches. So the key, the first IPv4 address and
// what is checked of it are in two adjacent lines of the cache, and an entry with the kernel's header has 192 bytes: the
// kernel allocates no more for it, and the entries use all sets of a cache (with a power of two they would use a part).
// IPv6 addresses from the second one on, which few names have, are in a map of their own.
//
// The map of settings has two slots. The user space writes the slot that is not in use, and then the generation, whose
// lowest bit selects the slot. A query whose settings or entry change while it is answered goes to the server.
//
// The memory that a query needs belongs to the processor. Packets of a processor are handled one after the other, also
// test runs (interrupts of the network wait), but on real-time kernels from Linux 6.18 on: there a thread with a higher
// priority may begin a query while another one is answered. This query goes to the server.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include <stddef.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define NEXT TC_ACT_UNSPEC // also the value of TCX_NEXT
#define DNS_PORT 53
#define HEADER 12
#define NAME 128      // bytes of the longest name that is answered here, with the root
#define KEY 56        // bytes of the longest part before the zone in the map, without the root
#define LABELS 16     // labels of such a name, with the root
#define QUERY 256     // bytes of the longest query
#define REPLY 512     // bytes of the longest reply: every client accepts 512
#define ADDRESSES 12  // addresses of an entry in each family
#define ZONE 64       // bytes of the longest zone, padded
#define SOA 54        // bytes of the SOA record of a negative answer
#define OPT 11        // bytes of an OPT record without options
#define TYPE_A 1
#define TYPE_AAAA 28
#define TYPE_IXFR 251
#define TYPE_AXFR 252
#define NXDOMAIN 3
#define ADDRESS_ENTRY 1
#define LABEL_POD 0x646f7003 // "\3pod"
#define LABEL_SVC 0x63767303 // "\3svc"
#define DATA 64       // offset of the DNS message in a frame under construction

typedef __u64 __attribute__((may_alias)) word;
typedef __u32 __attribute__((may_alias)) half;
typedef __u16 __attribute__((may_alias)) quarter;

#define NOW(field) (*(const volatile __typeof__(field) *)&(field)) // what another processor may be writing

enum counter {
    ANSWERED_A,
    ANSWERED_AAAA,
    ANSWERED_NODATA,
    ANSWERED_NXDOMAIN,
    PASSED_CLIENT,
    PASSED_OFF,
    PASSED_LEASE,
    PASSED_FORM,
    PASSED_CHECKSUM,
    PASSED_LONG,
    PASSED_FOREIGN,
    PASSED_NAME,
    PASSED_TYPE,
    PASSED_CHANGED,
    PASSED_BUSY,
    COUNTERS,
};

struct client {
    __u32 device;
    __u8 address[16]; // IPv4 as ::ffff:0:0/96
};

struct name {
    __u8 text[KEY];
};

struct entry {
    __u32 version; // differs for each write of any entry
    __u8 kind;     // ADDRESS_ENTRY, or 0: the server answers
    __u8 count4;
    __u8 count6;
    __u8 unused;
    __u8 first4[4];
    __u32 check1; // equals `version`, as `check` does: an entry that is being written has different ones
    __u8 first6[16];
    __u8 more4[ADDRESSES - 1][4];
    __u32 check;
};

// The IPv6 addresses of a name behind the first one.
struct more6 {
    __u32 version; // that of the entry
    __u32 unused;
    __u8 v6[ADDRESSES - 1][16];
    __u32 check; // equals `version`
    __u32 padding;
};

struct settings {
    __u64 generation;
    __u64 lease_ns;    // of the boot clock
    __u8 server4[16];  // the addresses of the DNS Service; zeros: none of the family
    __u8 server6[16];
    __u8 head4[12];    // an A record up to its address
    __u8 head6[12];    // an AAAA record up to its address
    __u8 zone[ZONE];   // in lower case, padded with zeros
    __u8 soa[56];      // the SOA record; its three pointers are set for each reply
    __u32 zone_size;
    __u16 udp_size;
    __u8 closed;       // whether a name that is not in the map does not exist
    __u8 long_names;   // whether there are names that are longer than a key
};

struct scratch {
    __u32 busy;        // whether a query is answered with this memory
    __u8 query[2 * REPLY - 4]; // its name is aligned
    __u8 key[KEY];     // the part of the name before the zone
    __u8 service[KEY]; // the part of the name of a Service before the zone
    __u8 starts[LABELS]; // offset of each label in the message
    __u8 frame[DATA + 2 * REPLY];
};

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __uint(max_entries, 131072);
    __type(key, struct name);
    __type(value, struct entry);
} dns_names SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __uint(max_entries, 32768);
    __type(key, struct name);
    __type(value, struct more6);
} dns_more6 SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 2);
    __type(key, __u32);
    __type(value, struct settings);
} dns_settings SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u64);
} dns_generation SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __uint(max_entries, 8192);
    __type(key, struct client);
    __type(value, __u32);
} dns_clients SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, COUNTERS);
    __type(key, __u32);
    __type(value, __u64);
} dns_counters SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct scratch);
} dns_scratch SEC(".maps");

// The query in the packet.
struct query {
    __u32 network;   // bytes of the IP header
    __u32 size;      // bytes of the DNS message
    __u32 end;       // offset behind the question
    __u32 name_size; // with the root
    __u32 zone_at;   // offset of the zone in the message
    __u32 labels;    // labels before the zone
    __u32 limit;     // largest reply
    __u16 type;
    __u8 edns;
    __u8 dnssec_ok;
    __u8 partial; // whether the device completes the checksum
    __u8 long_name; // whether the name is longer than a key
};

// The number with the bits of a mask alone: the verifier then knows its range, which no check above needs to repeat.
static __always_inline __u64 bound(__u64 number, const __u32 mask)
{
    asm volatile("%0 &= %1" : "+r"(number) : "i"(mask));
    return number;
}

static __always_inline void count(__u32 which)
{
    __u64 *cell = bpf_map_lookup_elem(&dns_counters, &which);

    if (cell)
        *cell += 1;
}

static __always_inline int pass(__u32 why)
{
    count(why);
    return NEXT;
}

static __always_inline __u16 fold(__u64 sum)
{
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return sum;
}

static __always_inline __u64 lower(__u64 x)
{
    const __u64 ones = 0x0101010101010101ULL;
    __u64 heptets = x & (0x7f * ones);
    __u64 above = heptets + ((0x7f - 'Z') * ones);
    __u64 from = heptets + ((0x80 - 'A') * ones);
    __u64 upper = ~x & (0x80 * ones) & (from ^ above);

    return x | (upper >> 2);
}

// The sum of the addresses, the protocol and a length, as the checksum has it.
static __always_inline __u64 pseudo_sum(const __u8 *addresses, __u32 words, __u16 length)
{
    __u64 sum = bpf_htons(IPPROTO_UDP) + (__u64)length;

#pragma unroll
    for (int at = 0; at < 8; at++)
        if (at < words)
            sum += ((const half *)addresses)[at];
    return sum;
}

// Reads the header, the question and the OPT record; returns 0, or why the query goes to the server.
static __always_inline int parse(struct scratch *memory, struct query *query)
{
    const __u8 *data = memory->query;
    __u32 offset = HEADER, label;

    // A query with one question, no record of an answer or authority, and at most one additional record.
    if ((*(const word *)data & 0xffffffff00f80000ULL) != 1ULL << 40 || *(const half *)(data + 8) & ~0x01000000U)
        return PASSED_FORM;
    for (label = 0; label < LABELS; label++) {
        __u32 length;

        if (offset >= HEADER + NAME)
            return PASSED_LONG;
        length = data[bound(offset, 0xff)];
        memory->starts[label] = offset;
        if (!length)
            break;
        if (length > 63)
            return PASSED_FORM;
        offset += length + 1;
    }
    if (label == LABELS)
        return PASSED_LONG;
    query->labels = label;
    query->name_size = offset + 1 - HEADER;
    query->end = offset + 5;
    if (offset >= HEADER + NAME || query->end > query->size)
        return PASSED_FORM;
    data += bound(offset, 0xff);
    query->type = data[1] << 8 | data[2];
    if (data[3] || data[4] != 1)
        return PASSED_FORM;
    query->limit = REPLY;
    query->edns = memory->query[11];
    if (query->edns) {
        const __u8 *opt = data + 5;

        if (query->size < query->end + OPT || opt[0] || opt[1] || opt[2] != 41 || opt[6])
            return PASSED_FORM;
        query->limit = opt[3] << 8 | opt[4];
        query->dnssec_ok = opt[7] & 0x80;
        if (query->end + OPT + (opt[9] << 8 | opt[10]) != query->size)
            return PASSED_FORM;
    } else if (query->end != query->size) {
        return PASSED_FORM;
    }
    return 0;
}

// Writes `size` bytes of a name as a key, in lower case; the bytes behind them are zero.
static __always_inline void write_key(__u8 *key, const __u8 *name, __u32 size)
{
#pragma unroll
    for (int at = 0; at < KEY / 8; at++) {
        __s32 left = (__s32)size - 8 * at;
        __u64 bytes = 0;

        if (left > 0) {
            bytes = lower(*(const word *)(name + 8 * at));
            if (left < 8)
                bytes &= (1ULL << (8 * left)) - 1;
        }
        ((word *)key)[at] = bytes;
    }
}

// Finds the zone in the name, and writes the key; returns 0, or why the query goes to the server. What was written is
// not read in other units soon after: the processor would wait for that.
static __always_inline int find_zone(struct scratch *memory, const struct settings *settings, struct query *query)
{
    const word *zone = (const word *)settings->zone;
    const __u8 *name = memory->query + HEADER;
    __u32 size = query->name_size, begin, labels = 0;

    if (size < settings->zone_size)
        return PASSED_FOREIGN;
    begin = size - settings->zone_size;
    if (begin >= NAME)
        return PASSED_FOREIGN;
    for (labels = 0; labels < LABELS; labels++)
        if (labels >= query->labels || memory->starts[labels] >= begin + HEADER)
            break;
    if (labels >= LABELS || memory->starts[bound(labels, LABELS - 1)] != begin + HEADER)
        return PASSED_FOREIGN;
    begin = bound(begin, NAME - 1);
#pragma unroll
    for (int at = 0; at < ZONE / 8; at++) {
        __s32 left = (__s32)settings->zone_size - 8 * at;
        __u64 bytes;

        if (left <= 0)
            break;
        bytes = lower(*(const word *)(name + begin + 8 * at));
        if (left < 8)
            bytes &= (1ULL << (8 * left)) - 1;
        if (bytes != zone[at])
            return PASSED_FOREIGN;
    }
    query->zone_at = begin + HEADER;
    query->labels = labels;
    query->long_name = begin > KEY;
    if (query->long_name && settings->long_names)
        return PASSED_LONG;
    write_key(memory->key, name, begin);
    return 0;
}

// Whether a name that is not in the map does not exist; 0, or why the query goes to the server.
static __always_inline int is_missing(struct scratch *memory, const struct settings *settings, struct query *query)
{
    __u32 labels = query->labels, at, size;
    __u64 label;

    if (!settings->closed)
        return PASSED_OFF;
    if (query->type == TYPE_IXFR || query->type == TYPE_AXFR)
        return PASSED_TYPE;
    if (labels < 1 || labels >= LABELS)
        return PASSED_NAME;
    at = bound(memory->starts[bound(labels - 1, LABELS - 1)], 0xff);
    label = lower(*(const half *)(memory->query + at));
    if (label == LABEL_POD)
        return PASSED_NAME;
    if (label != LABEL_SVC || labels < 4)
        return 0;
    at = bound(memory->starts[bound(labels - 3, LABELS - 1)], 0xff);
    size = query->zone_at - at;
    if (size > KEY)
        return 0;
    write_key(memory->service, memory->query + at, size);
    return bpf_map_lookup_elem(&dns_names, memory->service) ? PASSED_NAME : 0;
}

// Writes a record of an address behind `end`; the offset behind it.
static __always_inline __u32 write_record(__u8 *reply, __u32 end, const __u8 *head, const __u8 *address, int v6)
{
    __u8 *record = reply + bound(end, REPLY - 1);

    *(word *)record = *(const word *)head;
    *(half *)(record + 8) = *(const half *)(head + 8);
    if (v6) {
        *(word *)(record + 12) = *(const word *)address;
        *(word *)(record + 20) = *(const word *)(address + 8);
        return end + 28;
    }
    *(half *)(record + 12) = *(const half *)address;
    return end + 16;
}

// Writes the address records of an entry, beginning with a random one; the offset behind them. `more` has the addresses
// behind the first one, if there are any.
static __always_inline __u32 write_addresses(__u8 *reply, __u32 end, __u32 number, const __u8 *address,
                                             const __u8 *more, const __u8 *head, int v6)
{
    __u32 first = 0;

    if (number == 1)
        return write_record(reply, end, head, address, v6);
    if (number > ADDRESSES)
        number = ADDRESSES;
    if (number)
        first = bpf_get_prandom_u32() % number;
    for (__u32 at = 0; at < ADDRESSES; at++) {
        __u32 which = at + first;

        if (at >= number || end > HEADER + NAME + 4 + ADDRESSES * 28)
            break;
        if (which >= number)
            which -= number;
        which = bound(which, 15);
        if (which >= ADDRESSES)
            break;
        end = write_record(reply, end, head, which ? more + (which - 1) * (v6 ? 16 : 4) : address, v6);
    }
    return end;
}

// Writes `number` records of the answer; the offset behind them, or 0 when the entry is not of this version any more.
// What the answer does not need is not read.
static __always_inline __u32 write_answer(struct scratch *memory, const struct settings *settings, struct query *query,
                                          const struct entry *entry, __u32 version, __u32 number)
{
    __u8 *reply = memory->frame + DATA;
    __u32 end = query->end;

    if (query->type == TYPE_A) {
        end = write_addresses(reply, end, number, entry->first4, entry->more4[0], settings->head4, 0);
    } else if (number > 1) {
        const struct more6 *more = bpf_map_lookup_elem(&dns_more6, memory->key);

        if (!more)
            return 0;
        end = write_addresses(reply, end, number, entry->first6, more->v6[0], settings->head6, 1);
        if (NOW(more->version) != version || NOW(more->check) != version)
            return 0;
    } else if (number) {
        end = write_record(reply, end, settings->head6, entry->first6, 1);
    }
    if (NOW(entry->version) != version || NOW(entry->check1) != version)
        return 0;
    if ((number > 1 || (number && query->type != TYPE_A)) && NOW(entry->check) != version)
        return 0;
    return end;
}

static __always_inline __u32 write_soa(__u8 *reply, __u32 end, const struct settings *settings, __u32 zone_at)
{
    __u8 *record = reply + bound(end, REPLY - 1);
    __u16 pointer = bpf_htons(0xc000 | zone_at);

#pragma unroll
    for (int at = 0; at < 7; at++)
        *(word *)(record + 8 * at) = ((const word *)settings->soa)[at];
    *(quarter *)record = pointer;
    *(quarter *)(record + 19) = pointer;
    *(quarter *)(record + 32) = pointer;
    return end + SOA;
}

static __always_inline __u32 write_opt(__u8 *reply, __u32 end, const struct settings *settings, struct query *query)
{
    __u32 limit = query->limit;
    __u8 *opt = reply + bound(end, REPLY - 1);

    if (limit < REPLY)
        limit = REPLY;
    if (limit > settings->udp_size)
        limit = settings->udp_size;
    opt[0] = 0;
    opt[1] = 0;
    opt[2] = 41;
    opt[3] = limit >> 8;
    opt[4] = limit;
    opt[5] = 0;
    opt[6] = 0;
    opt[7] = query->dnssec_ok;
    opt[8] = 0;
    opt[9] = 0;
    opt[10] = 0;
    return end + OPT;
}

// Writes the DNS message; its size, or 0 when the query goes to the server. `outcome` is the counter in any case.
static __always_inline __u32 write_reply(struct scratch *memory, const struct settings *settings, struct query *query,
                                         __u32 *outcome)
{
    struct entry *entry = query->long_name ? NULL : bpf_map_lookup_elem(&dns_names, memory->key);
    __u8 *reply = memory->frame + DATA;
    __u32 end = query->end, answers = 0;
    __u64 rcode = 0, head;

    if (end > HEADER + NAME + 4)
        return 0;
#pragma unroll
    for (int at = 1; at < (HEADER + NAME + 4 + 7) / 8; at++)
        *(word *)(reply + 8 * at) = *(const word *)(memory->query + 8 * at);
    if (entry) {
        __u32 version = NOW(entry->version);

        if (NOW(entry->kind) != ADDRESS_ENTRY) {
            *outcome = PASSED_NAME;
            return 0;
        }
        if (query->type != TYPE_A && query->type != TYPE_AAAA) {
            *outcome = PASSED_TYPE;
            return 0;
        }
        answers = query->type == TYPE_A ? NOW(entry->count4) : NOW(entry->count6);
        *outcome = !answers ? ANSWERED_NODATA : query->type == TYPE_A ? ANSWERED_A : ANSWERED_AAAA;
        end = write_answer(memory, settings, query, entry, version, answers);
        if (!end) {
            *outcome = PASSED_CHANGED;
            return 0;
        }
    } else {
        int why = is_missing(memory, settings, query);

        if (why) {
            *outcome = why;
            return 0;
        }
        rcode = NXDOMAIN;
        *outcome = ANSWERED_NXDOMAIN;
    }
    if (end > REPLY - SOA - OPT)
        if (!answers)
            return 0;
    if (!answers)
        end = write_soa(reply, end, settings, query->zone_at);
    if (end > REPLY - OPT)
        return 0;
    if (query->edns)
        end = write_opt(reply, end, settings, query);
    // ID, RD, CD and the count of questions are those of the query; QR and AA are set.
    head = *(const word *)memory->query & 0x0000ffff1001ffffULL;
    *(word *)reply = head | 0x84 << 16 | rcode << 24 | (__u64)(answers & 0xff) << 56;
    reply[9] = !answers;
    *(word *)(reply + bound(end, REPLY - 1)) = 0; // for the checksum
    return end;
}

static __always_inline __u64 message_sum(const __u8 *data, __u32 size)
{
    __u32 padded = bound(size + 3, 0x1fc);

    return (__u32)bpf_csum_diff(0, 0, (__be32 *)data, padded, 0);
}

// Whether the checksum of the query is right; finds out whether a device still has to complete it.
static __always_inline int check_sum(struct scratch *memory, struct query *query, const struct udphdr *udp,
                                     __u64 pseudo)
{
    __u64 sum = pseudo + udp->source + (__u64)udp->dest + udp->len + udp->check;
    int whole;

    sum += message_sum(memory->query, query->size);
    whole = fold(sum) == 0xffff;
    query->partial = udp->check == fold(pseudo);
    if (query->partial)
        return !whole;
    return whole || (!udp->check && query->network == sizeof(struct iphdr));
}

static __always_inline int send_back(struct __sk_buff *skb, struct scratch *memory, struct query *query,
                                     const struct ethhdr *ethernet, const __u8 *addresses, struct udphdr *udp,
                                     __u32 size)
{
    int v6 = query->network == sizeof(struct ipv6hdr);
    __u32 headers = sizeof(struct ethhdr) + query->network + sizeof(struct udphdr), total;
    __u8 *frame = memory->frame + (v6 ? DATA - 62 : DATA - 42);
    struct udphdr *udp_out = (struct udphdr *)(memory->frame + DATA - sizeof(struct udphdr));
    struct ethhdr *ethernet_out = (struct ethhdr *)frame;
    __u16 length = bpf_htons(size + sizeof(struct udphdr));
    __u64 sum = pseudo_sum(addresses, v6 ? 8 : 2, length);

    __builtin_memcpy(ethernet_out->h_dest, ethernet->h_source, ETH_ALEN);
    __builtin_memcpy(ethernet_out->h_source, ethernet->h_dest, ETH_ALEN);
    ethernet_out->h_proto = ethernet->h_proto;
    udp_out->source = udp->dest;
    udp_out->dest = udp->source;
    udp_out->len = length;
    if (query->partial) {
        udp_out->check = fold(sum);
    } else {
        __u16 check;

        sum += udp->source + (__u64)udp->dest + length + message_sum(memory->frame + DATA, size);
        check = ~fold(sum);
        udp_out->check = check ? check : 0xffff;
    }
    if (v6) {
        half *ip = (half *)(frame + sizeof(struct ethhdr));

        ip[0] = bpf_htonl(0x60000000);
        ip[1] = (__u32)length | (__u32)IPPROTO_UDP << 16 | 64U << 24;
#pragma unroll
        for (int at = 0; at < 4; at++) {
            ip[2 + at] = ((const half *)addresses)[4 + at];
            ip[6 + at] = ((const half *)addresses)[at];
        }
    } else {
        half *ip = (half *)(frame + sizeof(struct ethhdr));
        __u64 head = 0;

        ip[0] = 0x45 | (__u32)bpf_htons(size + sizeof(struct udphdr) + sizeof(struct iphdr)) << 16;
        ip[1] = (__u32)bpf_htons(0x4000) << 16;
        ip[2] = 64 | IPPROTO_UDP << 8;
        ip[3] = ((const half *)addresses)[1];
        ip[4] = ((const half *)addresses)[0];
#pragma unroll
        for (int at = 0; at < 5; at++)
            head += ip[at];
        ip[2] |= (__u32)(__u16)~fold(head) << 16;
    }
    total = headers + size;
    if (bpf_skb_change_tail(skb, total, 0))
        return pass(PASSED_CHANGED);
    if (v6) {
        if (bpf_skb_store_bytes(skb, 0, memory->frame + DATA - 62, bound(size, REPLY - 1) + 62, 0))
            return TC_ACT_SHOT;
    } else {
        if (bpf_skb_store_bytes(skb, 0, memory->frame + DATA - 42, bound(size, REPLY - 1) + 42, 0))
            return TC_ACT_SHOT;
    }
    return bpf_redirect(skb->ifindex, 0);
}

// The IP header: its size, or 0 when the packet is no plain UDP. `addresses` gets source and destination.
static __always_inline __u32 read_network(const void *network, const void *end, __u16 protocol, __u8 *addresses)
{
    if (protocol == bpf_htons(ETH_P_IP)) {
        const struct iphdr *ip = network;

        if ((const void *)(ip + 1) > end || *(const __u8 *)network != 0x45 || ip->protocol != IPPROTO_UDP)
            return 0;
        if (ip->frag_off & bpf_htons(0x3fff))
            return 0;
        *(half *)addresses = ip->saddr;
        *(half *)(addresses + 4) = ip->daddr;
        return sizeof(*ip);
    }
    if (protocol == bpf_htons(ETH_P_IPV6)) {
        const struct ipv6hdr *ip = network;

        if ((const void *)(ip + 1) > end || ip->nexthdr != IPPROTO_UDP)
            return 0;
        __builtin_memcpy(addresses, &ip->saddr, 32);
        return sizeof(*ip);
    }
    return 0;
}

// Writes an address of either family in 16 bytes.
static __always_inline void write_address(__u8 *to, const __u8 *addresses, __u32 network, int destination)
{
    if (network == sizeof(struct iphdr)) {
        *(word *)to = 0;
        *(half *)(to + 8) = bpf_htonl(0xffff);
        *(half *)(to + 12) = ((const half *)addresses)[destination];
    } else {
        *(word *)to = ((const word *)addresses)[2 * destination];
        *(word *)(to + 8) = ((const word *)addresses)[2 * destination + 1];
    }
}

// Answers a query that is for the DNS Service and comes from a client.
static __always_inline int answer(struct __sk_buff *skb, struct scratch *memory, const struct settings *settings,
                                  __u64 current, struct query *query, const struct ethhdr *ethernet,
                                  const __u8 *addresses, struct udphdr *udp)
{
    __u32 size, outcome = 0;
    int why;

    if (bpf_ktime_get_boot_ns() > settings->lease_ns)
        return pass(PASSED_LEASE);
    query->size = bpf_ntohs(udp->len) - sizeof(*udp);
    if (query->size < HEADER + 5 || query->size > QUERY)
        return pass(PASSED_LONG);
    size = sizeof(*ethernet) + query->network + sizeof(*udp);
    if (skb->len < size + query->size ||
        bpf_skb_load_bytes(skb, size, memory->query, bound(query->size - 1, QUERY - 1) + 1))
        return pass(PASSED_FORM);
    *(half *)(memory->query + bound(query->size, 0x1ff)) = 0;
    if (!check_sum(memory, query, udp, pseudo_sum(addresses, query->network == 20 ? 2 : 8, udp->len)))
        return pass(PASSED_CHECKSUM);
    why = parse(memory, query);
    if (!why)
        why = find_zone(memory, settings, query);
    if (why)
        return pass(why);
    size = write_reply(memory, settings, query, &outcome);
    if (!size)
        return pass(outcome);
    if (NOW(settings->generation) != current)
        return pass(PASSED_CHANGED);
    count(outcome);
    return send_back(skb, memory, query, ethernet, addresses, udp, size);
}

SEC("tc")
int dns_answers(struct __sk_buff *skb)
{
    __u8 addresses[32] __attribute__((aligned(8))) = {};
    __u8 server[16] __attribute__((aligned(8))) = {};
    struct client_key {
        __u32 unused;
        struct client client;
    } __attribute__((aligned(8))) key = {};
    void *data = (void *)(long)skb->data, *data_end = (void *)(long)skb->data_end;
    struct query query = {};
    struct ethhdr ethernet;
    struct udphdr udp;
    struct settings *settings;
    struct scratch *memory;
    __u64 *generation, current;
    __u32 zero = 0, slot;
    const word *own;
    int verdict;

    if (data + sizeof(ethernet) + sizeof(struct iphdr) + sizeof(udp) > data_end)
        return NEXT;
    query.network = read_network(data + sizeof(ethernet), data_end, skb->protocol, addresses);
    if (query.network == sizeof(struct iphdr)) {
        if (data + sizeof(ethernet) + sizeof(struct iphdr) + sizeof(udp) > data_end)
            return NEXT;
        __builtin_memcpy(&udp, data + sizeof(ethernet) + sizeof(struct iphdr), sizeof(udp));
    } else if (query.network == sizeof(struct ipv6hdr)) {
        if (data + sizeof(ethernet) + sizeof(struct ipv6hdr) + sizeof(udp) > data_end)
            return NEXT;
        __builtin_memcpy(&udp, data + sizeof(ethernet) + sizeof(struct ipv6hdr), sizeof(udp));
    } else {
        return NEXT;
    }
    if (udp.dest != bpf_htons(DNS_PORT) || skb->vlan_present || skb->gso_size)
        return NEXT;
    generation = bpf_map_lookup_elem(&dns_generation, &zero);
    if (!generation)
        return NEXT;
    current = *(volatile __u64 *)generation;
    slot = current & 1;
    settings = bpf_map_lookup_elem(&dns_settings, &slot);
    memory = bpf_map_lookup_elem(&dns_scratch, &zero);
    if (!settings || !memory)
        return NEXT;
    write_address(server, addresses, query.network, 1);
    own = (const word *)(query.network == sizeof(struct iphdr) ? settings->server4 : settings->server6);
    if (((const word *)server)[0] != own[0] || ((const word *)server)[1] != own[1] || !(own[0] | own[1]))
        return NEXT;
    key.client.device = skb->ifindex;
    write_address(key.client.address, addresses, query.network, 0);
    if (!bpf_map_lookup_elem(&dns_clients, &key.client))
        return pass(PASSED_CLIENT);
    if (!current || NOW(settings->generation) != current)
        return pass(PASSED_OFF);
    if (NOW(memory->busy))
        return pass(PASSED_BUSY);
    *(volatile __u32 *)&memory->busy = 1;
    __builtin_memcpy(&ethernet, data, sizeof(ethernet));
    verdict = answer(skb, memory, settings, current, &query, &ethernet, addresses, &udp);
    *(volatile __u32 *)&memory->busy = 0;
    return verdict;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
