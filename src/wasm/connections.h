/* The connections of the filter head_check, and their memory; behind the types of integers and struct parser. */

struct connection {
    struct connection *next;
    u32 id;
    struct parser parser;
    u8 kept;      /* a carriage return is kept back */
    u8 pipelined; /* the buffer has bytes behind the request that is being answered */
    u32 total;    /* the length of the buffer when it was handed on */
    u32 end;      /* of that request, in the buffer */
    u32 left;     /* bytes at the front of the buffer that are handed on again */
    u32 behind;   /* bytes that began behind a request, for whose answer they may have to wait */
    u32 checksum; /* of these */
};
_Static_assert(sizeof(struct connection) == 80, "the memory of a connection");

/* Memory: linear memory grows by pages, and nothing is given back. */

enum { PAGE = 65536, BUCKETS = 8192, SPARE = 16 };

static struct connection *buckets[BUCKETS];
static struct connection *unused;
static u8 first_scratch[2 * PAGE];
static u8 *scratch = first_scratch;
static u32 scratch_size = sizeof(first_scratch);

static u8 *grow(u32 pages)
{
    u32 before = __builtin_wasm_memory_grow(0, pages);
    if (before == ~0u)
        __builtin_trap(); /* the engine closes the connections, and starts the filter anew */
    return (u8 *)(before * PAGE);
}

/* Where the engine puts bytes; what an earlier call got is not used any more, and there is room for a few bytes more. */
EXPORT(proxy_on_memory_allocate) void *proxy_on_memory_allocate(u32 size)
{
    if (size + SPARE > scratch_size) {
        u32 pages = (size + SPARE + PAGE - 1) / PAGE;
        scratch = grow(pages);
        scratch_size = pages * PAGE;
    }
    return scratch;
}

static struct connection **find(u32 id)
{
    struct connection **place = &buckets[id % BUCKETS];
    while (*place && (*place)->id != id)
        place = &(*place)->next;
    return place;
}

static struct connection *open(struct connection **place, u32 id)
{
    if (!unused) {
        struct connection *fresh = (struct connection *)grow(1);
        for (u32 i = 0; i < PAGE / sizeof(*fresh); i++) {
            fresh[i].next = unused;
            unused = &fresh[i];
        }
    }
    struct connection *c = unused;
    unused = c->next;
    __builtin_memset(c, 0, sizeof(*c));
    c->id = id;
    *place = c;
    return c;
}
