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
 * Pipelined requests: the connection manager takes one request, and leaves what follows in the connection's buffer until
 * it has answered. This filter then gets the same bytes again, in front of new ones. To know them it begins each request
 * behind the first of a connection with a mark: 96 empty lines, which the parser of Envoy passes over. Whether a line
 * ends with a carriage return or with a line feed tells 96 bits: the place of the request in the stream, and 64 bits that
 * no client knows, which depend on the connection and on the place. The buffer begins with a request that waits or with
 * new bytes, so a mark at its front says what is there again, and no mark that nothing is.
 * Empty lines of the client in front of such a request are left out.
 *
 * Memory: 64 bytes for each connection, and two copies of the bytes at hand.
 */

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#define EXPORT(name) __attribute__((export_name(#name)))
#define IMPORT(name) __attribute__((import_module("env"), import_name(#name)))

enum { DOWNSTREAM_DATA = 2 }; /* type of buffer */
enum { CONTINUE = 0 };

IMPORT(proxy_get_buffer_bytes) u32 proxy_get_buffer_bytes(u32 type, u32 start, u32 length, u8 **data, u32 *size);
IMPORT(proxy_set_buffer_bytes) u32 proxy_set_buffer_bytes(u32 type, u32 start, u32 length, const u8 *data, u32 size);
__attribute__((import_module("wasi_snapshot_preview1"), import_name("random_get"))) u32 random_get(void *data, u32 size);

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
    const u8 *end; /* behind the last byte that was read */
    u8 ends;       /* a request ends there */
    u8 refused;    /* the byte at `end` is to be refused */
    u8 in_chunks;  /* it is between chunks */
};

/* Reads bytes up to the end of a request; a carriage return at their end is left. */
static struct span scan(struct parser *p, const u8 *at, const u8 *end)
{
    struct span span = {end, 0, 0, 0};
    while (at < end && p->state != PASS && p->state != REFUSED) {
        int outcome = GOES_ON;
        if (is_body(p)) {
            u64 count = p->rest < (u64)(end - at) ? p->rest : (u64)(end - at);
            outcome = skip(p, count) ? ENDS : GOES_ON;
            at += count;
        } else if (*at == '\r') {
            if (at + 1 == end)
                break;
            if (at[1] != '\n')
                outcome = IS_REFUSED;
            else
                at++;
        } else {
            outcome = *at == '\n' ? end_line(p) : take(p, *at);
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
            span.ends = 1;
            break;
        }
    }
    if (p->state != PASS)
        span.end = at;
    return span;
}

static const u8 *behind_empty_lines(const u8 *at, const u8 *end)
{
    while (at < end && (*at == '\n' || (*at == '\r' && at + 1 < end && at[1] == '\n')))
        at += *at == '\n' ? 1 : 2;
    return at;
}

/* Marks. */

enum { SECRET = 64, MARK = SECRET + 32 };

static u64 keys[2];

/* The bits of a mark that tell its place from all that a client can write. No client sees any of them. */
static u64 secret(u32 id, u32 place)
{
    if (!keys[0] && random_get(keys, sizeof(keys)))
        __builtin_trap();
    u64 mixed = (u64)id << 32 | place;
    for (u32 i = 0; i < 2; i++) {
        mixed = (mixed ^ keys[i]) * 0x9e3779b97f4a7c15u;
        mixed ^= mixed >> 32;
    }
    return mixed;
}

static void put_bits(u64 bits, u32 count)
{
    u8 *lines = room(count);
    for (u32 i = 0; i < count; i++)
        lines[i] = bits >> i & 1 ? '\n' : '\r';
}

/* Whether bytes are these bits. */
static int are_bits(const u8 *data, u64 bits, u32 count)
{
    for (u32 i = 0; i < count; i++)
        if (data[i] != (bits >> i & 1 ? '\n' : '\r'))
            return 0;
    return 1;
}

static void put_mark(u32 id, u32 place)
{
    put_bits(secret(id, place), SECRET);
    put_bits(place, MARK - SECRET);
}

/* How many bytes at the front of the buffer were handed on before. */
static u32 waiting(const struct connection *c, const u8 *data, u32 size)
{
    if (!c->marked || size < MARK)
        return 0;
    u32 place = 0;
    for (u32 i = SECRET; i < MARK; i++)
        place |= (u32)(data[i] == '\n') << (i - SECRET);
    if (!are_bits(data, secret(c->id, place), SECRET) || !are_bits(data + SECRET, place, MARK - SECRET))
        return 0;
    u32 count = c->handed - place;
    if (count < MARK || count > size)
        __builtin_trap();
    return count;
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
    struct connection **found = find(id), *c = *found ? *found : open(found, id);
    struct parser *p = &c->parser;
    if (!size || p->state == PASS)
        return CONTINUE;
    if (!c->marked && !c->kept && is_body(p) && p->rest > size) {
        p->rest -= size;
        c->handed += size;
        return CONTINUE;
    }
    u8 *data;
    u32 total;
    if (proxy_get_buffer_bytes(DOWNSTREAM_DATA, 0, size, &data, &total) || total != size)
        __builtin_trap();
    u32 again = waiting(c, data, size), before = c->handed - again;
    int changed = c->kept;
    start_output();
    put(data, again);
    u8 *fresh = data + again;
    if (c->kept)
        *--fresh = '\r';
    const u8 *at = fresh, *end = data + size;
    struct span span = {at, 1, 0, 0};
    c->marked = again > 0;
    while (at < end && span.ends) {
        if (p->later && p->state == BEFORE) {
            changed = 1;
            at = behind_empty_lines(at, end);
            if (at == end || (*at == '\r' && at + 1 == end))
                break;
            put_mark(id, before + output_size);
            c->marked = 1;
        }
        span = scan(p, at, end);
        put(at, span.end - at);
        at = span.end;
    }
    if (span.refused)
        put((const u8 *)"\r\0\r\n\r\n" + !span.in_chunks, 5 + span.in_chunks);
    c->kept = p->state != REFUSED && at < end;
    c->handed = before + output_size;
    if (changed || at < end || span.refused)
        proxy_set_buffer_bytes(DOWNSTREAM_DATA, 0, size, output, output_size);
    return CONTINUE;
}
