/* The connections of the filter head_check, and their memory; behind the types of integers and struct parser. */

struct connection {
    struct connection *next;
    u32 id;
    struct parser parser;
    u8 kept;    /* a carriage return is kept back */
    u8 marked;  /* the buffer may begin with a request that waits */
    u32 handed; /* bytes handed on */
};
_Static_assert(sizeof(struct connection) == 64, "the memory of a connection");

/* Memory: linear memory grows by pages, and nothing is given back. */

enum { PAGE = 65536, BUCKETS = 8192 };

static struct connection *buckets[BUCKETS];
static struct connection *unused;
static u8 first_input[2 * PAGE], first_output[2 * PAGE];
static u8 *input = first_input, *output = first_output;
static u32 input_room = sizeof(first_input), output_room = sizeof(first_output), output_size;

static u8 *grow(u32 pages)
{
    u32 before = __builtin_wasm_memory_grow(0, pages);
    if (before == ~0u)
        __builtin_trap(); /* the engine closes the connections, and starts the filter anew */
    return (u8 *)(before * PAGE);
}

static u32 pages_of(u32 size)
{
    return (size + PAGE - 1) / PAGE;
}

/* Where the engine puts bytes; what an earlier call got is not used any more, and there is room for a byte in front. */
EXPORT(proxy_on_memory_allocate) void *proxy_on_memory_allocate(u32 size)
{
    if (size + 1 > input_room) {
        u32 pages = pages_of(size + 1);
        input = grow(pages);
        input_room = pages * PAGE;
    }
    return input + 1;
}

/* The bytes that take the place of those of the engine. */
static void start_output(void)
{
    output_size = 0;
}

/* Room for so many more of them. */
static u8 *room(u32 size)
{
    if (output_size + size > output_room) {
        u32 pages = pages_of(2 * (output_size + size));
        u8 *larger = grow(pages);
        __builtin_memcpy(larger, output, output_size);
        output = larger;
        output_room = pages * PAGE;
    }
    u8 *at = output + output_size;
    output_size += size;
    return at;
}

static void put(const u8 *data, u32 size)
{
    __builtin_memcpy(room(size), data, size);
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
