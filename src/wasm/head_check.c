/* Refuses heads of HTTP/1 that the engine would mend instead: with a carriage return that no line feed follows, with a
 * line that continues the one before it, or with two Host headers (RFC 9112, sections 2.2, 5.2 and 3.2).
 *
 * A network filter of Envoy in front of its HTTP connection manager, for the ABI 0.2.1 of proxy-wasm. It reads the
 * stream of a client as the connection manager will read it, so that bodies are not taken for heads: by Content-Length
 * and chunks, and after an upgrade, CONNECT or the preface of HTTP/2 it reads no more. In place of what is refused it
 * hands on bytes that Envoy's parser refuses with the status 400: in a head a NUL and an empty line, between chunks a
 * carriage return and a NUL. So answers to earlier requests come first, and the refusal is counted and logged as every
 * other one. Nothing behind it is handed on.
 *
 * A carriage return at the end of what has arrived is kept back until the next byte is there.
 *
 * Pipelined requests: the connection manager takes one request, and leaves what follows in the connection's buffer
 * until it has answered. This filter then gets the same bytes again, before new ones. How many those are it learns
 * while the answer passes (proxy_on_upstream_data). It reads the length of the buffer then, which Envoy lets it do only when the
 * filter has stopped the iteration and continues it by a call of its own. Requests that arrive while an earlier one is
 * being answered stay in the buffer as a whole; they are known again by their length and checksum.
 *
 * Memory: 80 bytes for each connection, and one copy of the bytes at hand.
 */

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#define EXPORT(name) __attribute__((export_name(#name)))
#define IMPORT(name) __attribute__((import_module("env"), import_name(#name)))

enum { DOWNSTREAM_DATA = 2 }; /* type of buffer */
enum { DOWNSTREAM = 2 };      /* type of stream */
enum { CONTINUE = 0, STOP_ITERATION = 1 };

IMPORT(proxy_get_buffer_bytes) u32 proxy_get_buffer_bytes(u32 type, u32 start, u32 length, u8 **data, u32 *size);
IMPORT(proxy_set_buffer_bytes) u32 proxy_set_buffer_bytes(u32 type, u32 start, u32 length, const u8 *data, u32 size);
IMPORT(proxy_get_buffer_status) u32 proxy_get_buffer_status(u32 type, u32 *length, u32 *flags);
IMPORT(proxy_continue_stream) u32 proxy_continue_stream(u32 type);

/* Where in a stream the next byte is. */
enum state {
    BEFORE,     /* in front of a request: empty lines are skipped */
    LINE,       /* in the line of a request */
    LINE_START, /* at the begin of a line of headers or trailers */
    NAME,       /* in the name of a field */
    VALUE,      /* in its value */
    BODY,       /* `rest` bytes of a body with a length */
    SIZE_START, /* in front of the size of a chunk */
    SIZE,       /* in it */
    EXTENSION,  /* behind it, up to the end of the line */
    CHUNK,      /* `rest` bytes of data of a chunk */
    CHUNK_END,  /* behind them, up to the end of the line */
    PASS,       /* all that follows is handed on as it is */
    REFUSED,    /* nothing that follows is handed on */
};

enum field { OTHER, HOST, CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE, CONNECTION };

enum { TEXT = 20 };

struct parser {
    u64 rest;
    u8 state;
    u8 later;      /* not the first request of the connection */
    u8 trailers;   /* the fields are those behind the chunks */
    u8 field;      /* the one whose value is read */
    u8 size;       /* of `text`; above TEXT when it did not fit */
    u8 has_host;   /* of the head: which fields it has, and what they say */
    u8 has_length;
    u8 has_coding;
    u8 is_chunked;
    u8 is_connect;
    u8 upgrades;   /* number of fields `Upgrade` */
    u8 is_h2c;
    u8 wants_upgrade;
    u8 text[TEXT]; /* the begin of the line of the request; then of a name, or an element of a value, in lower case */
};

#include "connections.h"

/* Fields of a head. */

static u8 lower(u8 c)
{
    return c >= 'A' && c <= 'Z' ? c + 32 : c;
}

static int is(const struct parser *p, const char *text)
{
    u32 i = 0;
    while (i < p->size && i < TEXT && text[i] && (u8)text[i] == p->text[i])
        i++;
    return i == p->size && !text[i];
}

static int begins(const struct parser *p, const char *text)
{
    for (u32 i = 0; text[i]; i++)
        if (i >= p->size || (u8)text[i] != p->text[i])
            return 0;
    return 1;
}

static void keep(struct parser *p, u8 c)
{
    if (p->size < TEXT)
        p->text[p->size] = c;
    if (p->size <= TEXT)
        p->size++;
}

static u8 field_of(const struct parser *p)
{
    if (p->trailers)
        return OTHER;
    if (is(p, "host"))
        return HOST;
    if (is(p, "content-length"))
        return CONTENT_LENGTH;
    if (is(p, "transfer-encoding"))
        return TRANSFER_ENCODING;
    if (is(p, "upgrade"))
        return UPGRADE;
    return is(p, "connection") ? CONNECTION : OTHER;
}

/* The length of a body; 0 when the text is no length. */
static int read_length(struct parser *p)
{
    if (!p->size || p->size > 18)
        return 0;
    p->rest = 0;
    for (u32 i = 0; i < p->size; i++) {
        if (p->text[i] < '0' || p->text[i] > '9')
            return 0;
        p->rest = p->rest * 10 + (p->text[i] - '0');
    }
    return 1;
}

/* The end of a value, or of an element of the list Connection. 0 when a length is none, or there are two, or two hosts. */
static int end_value(struct parser *p)
{
    while (p->size && p->size <= TEXT && p->text[p->size - 1] <= ' ')
        p->size--;
    switch (p->field) {
    case HOST:
        if (p->has_host)
            return 0;
        p->has_host = 1;
        break;
    case CONTENT_LENGTH:
        if (p->has_length || p->has_coding || !read_length(p))
            return 0;
        p->has_length = 1;
        break;
    case TRANSFER_ENCODING:
        if (p->has_length)
            return 0;
        p->is_chunked = !p->has_coding && is(p, "chunked");
        p->has_coding = 1;
        break;
    case UPGRADE:
        p->is_h2c = is(p, "h2c");
        p->upgrades += p->upgrades < 2;
        break;
    case CONNECTION:
        p->wants_upgrade |= is(p, "upgrade");
    }
    p->size = 0;
    return 1;
}

static void end_request(struct parser *p)
{
    __builtin_memset(p, 0, sizeof(*p));
    p->later = 1;
}

/* What follows a head: as Envoy's codec decides it. True when the request ends with its head. */
static int end_head(struct parser *p)
{
    if (p->is_connect || (p->wants_upgrade && p->upgrades && !(p->upgrades == 1 && p->is_h2c)))
        p->state = PASS;
    else if (p->has_coding)
        p->state = p->is_chunked ? SIZE_START : REFUSED; /* Envoy answers 501 to all other codings, and closes */
    else if (p->rest)
        p->state = BODY;
    else
        return 1;
    return 0;
}

static int digit(u8 c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = lower(c);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

enum { GOES_ON, ENDS, IS_REFUSED };

/* The end of a line. */
static int end_line(struct parser *p)
{
    switch (p->state) {
    case LINE:
        p->is_connect = begins(p, "CONNECT ");
        p->later = 1;
        p->state = LINE_START;
        break;
    case LINE_START:
        return p->trailers || end_head(p) ? ENDS : GOES_ON;
    case VALUE:
        if (!end_value(p))
            return IS_REFUSED;
        /* fall through */
    case NAME:
        p->state = LINE_START;
        break;
    case SIZE_START:
        return IS_REFUSED;
    case SIZE:
    case EXTENSION:
        p->trailers = !p->rest;
        p->state = p->rest ? CHUNK : LINE_START;
        break;
    case CHUNK_END:
        p->state = SIZE_START;
    }
    return GOES_ON;
}

/* A byte of a line. */
static int take(struct parser *p, u8 c)
{
    switch (p->state) {
    case BEFORE:
        p->state = LINE;
        p->size = 0;
        /* fall through */
    case LINE:
        if (p->size <= TEXT)
            keep(p, c);
        if (!p->later && p->size == 12 && is(p, "PRI * HTTP/2"))
            p->state = PASS;
        return GOES_ON;
    case LINE_START:
        if (c == ' ' || c == '\t')
            return IS_REFUSED;
        p->state = NAME;
        p->size = 0;
        /* fall through */
    case NAME:
        if (c == ':') {
            p->field = field_of(p);
            p->size = 0;
            p->state = VALUE;
        } else {
            keep(p, lower(c));
        }
        return GOES_ON;
    case VALUE:
        if (p->field == OTHER)
            return GOES_ON;
        if (c == ',' && p->field == CONNECTION)
            return end_value(p) ? GOES_ON : IS_REFUSED;
        if (p->size || c > ' ')
            keep(p, lower(c));
        return GOES_ON;
    case SIZE_START:
        p->rest = 0;
        if (digit(c) < 0)
            return IS_REFUSED;
        /* fall through */
    case SIZE:
        if (digit(c) >= 0) {
            if (p->rest >> 56)
                return IS_REFUSED;
            p->rest = p->rest << 4 | digit(c);
            p->state = SIZE;
        } else {
            p->state = EXTENSION;
        }
    }
    return GOES_ON;
}

/* Bytes of a body that need no look; true when the request ends with them. */
static int skip(struct parser *p, u64 count)
{
    p->rest -= count;
    if (p->rest || p->state == PASS)
        return 0;
    if (p->state == BODY)
        return 1;
    p->state = CHUNK_END;
    return 0;
}

static int is_body(const struct parser *p)
{
    return p->state == BODY || p->state == CHUNK;
}

struct span {
    u32 end;       /* behind the last byte that was read */
    u32 first_end; /* of the first request that ends; 0 for none */
    u8 refused;    /* the byte at `end` is to be refused */
    u8 in_chunks;  /* it is between chunks */
};

/* Reads bytes; a carriage return at their end is left. With `once` it stops behind the first request. */
static struct span scan(struct parser *p, const u8 *data, u32 from, u32 to, int once)
{
    struct span span = {from, 0, 0, 0};
    u32 at = from;
    while (at < to && p->state != PASS && p->state != REFUSED) {
        int outcome = GOES_ON;
        if (is_body(p)) {
            u64 count = p->rest < to - at ? p->rest : to - at;
            outcome = skip(p, count) ? ENDS : GOES_ON;
            at += (u32)count;
        } else if (data[at] == '\r') {
            if (at + 1 == to)
                break;
            if (data[at + 1] != '\n')
                outcome = IS_REFUSED;
            else
                at++;
        } else {
            outcome = data[at] == '\n' ? end_line(p) : take(p, data[at]);
            at += outcome != IS_REFUSED;
        }
        if (outcome == IS_REFUSED) {
            span.refused = 1;
            span.in_chunks = p->state >= SIZE_START;
            p->state = REFUSED;
            break;
        }
        if (outcome == ENDS) {
            end_request(p);
            if (!span.first_end)
                span.first_end = at;
            if (once)
                break;
        }
    }
    span.end = p->state == PASS ? to : at;
    return span;
}

/* FNV-1a. */
static u32 checksum(const u8 *data, u32 size)
{
    u32 sum = 2166136261u;
    for (u32 i = 0; i < size; i++)
        sum = (sum ^ data[i]) * 16777619u;
    return sum;
}

/* The end of the request at the front; 0 when it is not complete. */
static u32 end_of_request(const u8 *data, u32 size)
{
    struct parser p;
    __builtin_memset(&p, 0, sizeof(p));
    p.later = 1;
    return scan(&p, data, 0, size, 1).first_end;
}

EXPORT(proxy_abi_version_0_2_1) void proxy_abi_version_0_2_1(void) {}

EXPORT(proxy_on_context_create) void proxy_on_context_create(u32 id, u32 parent)
{
    (void)id, (void)parent;
}

EXPORT(proxy_on_delete) void proxy_on_delete(u32 id)
{
    struct connection **place = find(id), *c = *place;
    if (!c)
        return;
    *place = c->next;
    c->next = unused;
    unused = c;
}

EXPORT(proxy_on_downstream_data) u32 proxy_on_downstream_data(u32 id, u32 size, u32 is_last)
{
    (void)is_last;
    struct connection **place = find(id), *c = *place ? *place : open(place, id);
    struct parser *p = &c->parser;
    u32 left = c->left, behind = c->behind;
    c->pipelined = c->left = c->behind = 0;
    if (!size || p->state == PASS)
        return CONTINUE;
    if (!left && !behind && !c->kept && is_body(p) && p->rest > size) {
        p->rest -= size;
        return CONTINUE;
    }
    u8 *data;
    u32 total;
    if (proxy_get_buffer_bytes(DOWNSTREAM_DATA, 0, size, &data, &total) || total != size || left > size)
        __builtin_trap();
    if (!left && behind && behind <= size && checksum(data, behind) == c->checksum)
        left = behind;
    int is_behind = left || (p->later && p->state == BEFORE);
    int changed = c->kept;
    if (c->kept) {
        __builtin_memmove(data + left + 1, data + left, total - left);
        data[left] = '\r';
        total++;
    }
    struct span span = scan(p, data, left, total, 0);
    c->kept = !span.refused && p->state != REFUSED && span.end < total;
    if (span.refused) {
        if (span.in_chunks)
            data[span.end++] = '\r';
        __builtin_memcpy(data + span.end, "\0\r\n\r\n", 5);
        span.end += 5;
    }
    changed |= span.end < total || span.refused;
    if (changed)
        proxy_set_buffer_bytes(DOWNSTREAM_DATA, 0, size, data, span.end);
    if (is_behind) {
        c->behind = span.end;
        c->checksum = checksum(data, span.end);
    }
    c->total = span.end;
    c->end = left ? end_of_request(data, span.end) : span.first_end;
    if (!c->end || c->end >= c->total)
        return CONTINUE;
    c->pipelined = 1;
    proxy_continue_stream(DOWNSTREAM);
    return STOP_ITERATION;
}

/* Bytes of an answer to a request of several in the buffer.
 *
 * While the first request is still in the buffer, Envoy answers as it reads it, and takes the next one at once. All
 * answers behind that one come when the request is read and nothing more is: what the buffer has then stays in it until
 * the answer is complete, and is handed on again. (Envoy takes one request in each turn of its loop:
 * `http.max_requests_per_io_cycle`.)
 */
EXPORT(proxy_on_upstream_data) u32 proxy_on_upstream_data(u32 id, u32 size, u32 is_last)
{
    (void)size, (void)is_last;
    struct connection *c = *find(id);
    u32 length, flags;
    if (c && c->pipelined && !proxy_get_buffer_status(DOWNSTREAM_DATA, &length, &flags) && c->total - length >= c->end)
        c->left = length;
    return CONTINUE;
}
