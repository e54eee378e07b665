/*
 * podwire-cni: what the container runtime executes. Hands the request to the node's agent, prints the answer.
 *
 * The program knows nothing of the network configuration. It sends the CNI_ variables of its environment and its
 * standard input over a unix socket, passes the network namespace of CNI_NETNS as an open descriptor (so the agent
 * need not see the runtime's mounts), and prints what comes back. It links no C library: it starts in about half
 * a millisecond, and runs on hosts that have neither Python nor a particular libc.
 *
 *   request   PODWIRE1 NUL (NAME=VALUE NUL)* NUL stdin, then the writing side is closed; the first byte carries
 *             the descriptor (SCM_RIGHTS) when CNI_NETNS could be opened
 *   answer    one byte: the exit status; the rest is standard output. The exit status 253 demands a plugin for
 *             addresses (IPAM): VERB NUL PLUGIN NUL, and then nothing or an answer
 *
 * The plugin runs here, as on the host: it is looked for in CNI_PATH and gets this program's environment and standard
 * input. When the demand has an answer, that is the answer in the end; else the request is sent again with the variable
 * CNI_PODWIRE_IPAM, which holds the plugin's exit status (127: there is no such plugin), a space, and its output.
 *
 *   PODWIRE_CNI_SOCKET  where the agent listens (default /run/podwire/cni.sock)
 *   PODWIRE_CNI_WAIT_S  how long to wait for an agent that is being restarted (default 20, at most 600; STATUS: 5)
 *
 * Without CNI_COMMAND it says what it is. VERSION is answered here, so it works without the agent. When the agent
 * stays away, the answer is error 11 (try again later), for STATUS error 50 (not available). An agent that took a
 * request has 120 seconds to answer, for STATUS 5 or fewer: a runtime asks every few seconds, and waits for the answer.
 * tests/unit/cni/test_relay.py runs the program against a socket of its own; shim.py is the same in Python.
 */

typedef unsigned long word;

#if defined(__x86_64__)
enum { SYS_read = 0, SYS_write = 1, SYS_open_at = 257, SYS_poll_sleep = 35, SYS_socket = 41, SYS_connect = 42,
       SYS_sendmsg = 46, SYS_shutdown = 48, SYS_setsockopt = 54, SYS_exit = 231, SYS_clock = 228, SYS_close = 3,
       SYS_clone = 56, SYS_execve = 59, SYS_wait = 61, SYS_pipe = 293, SYS_dup = 292, SYS_access = 269,
       SYS_memfd = 319, SYS_seek = 8 };

static long call(long number, long a, long b, long c, long d, long e)
{
	long result;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;

	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
			 : "rcx", "r11", "memory");
	return result;
}

__asm__(".globl _start\n_start:\n\txor %ebp,%ebp\n\tmov %rsp,%rdi\n\tand $-16,%rsp\n\tcall begin\n");
#elif defined(__aarch64__)
enum { SYS_read = 63, SYS_write = 64, SYS_open_at = 56, SYS_poll_sleep = 101, SYS_socket = 198, SYS_connect = 203,
       SYS_sendmsg = 211, SYS_shutdown = 210, SYS_setsockopt = 208, SYS_exit = 94, SYS_clock = 113, SYS_close = 57,
       SYS_clone = 220, SYS_execve = 221, SYS_wait = 260, SYS_pipe = 59, SYS_dup = 24, SYS_access = 48,
       SYS_memfd = 279, SYS_seek = 62 };

static long call(long number, long a, long b, long c, long d, long e)
{
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;

	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
	return x0;
}

__asm__(".globl _start\n_start:\n\tmov x29,#0\n\tmov x0,sp\n\tbl begin\n");

/* The compiler calls it where it copies structures. */
void *memcpy(void *to, const void *from, word size)
{
	for (word i = 0; i < size; i++)
		((char *)to)[i] = ((const char *)from)[i];
	return to;
}
#else
#error "podwire-cni knows amd64 and arm64"
#endif

enum { AF_UNIX = 1, SOCK_STREAM = 1, SOL_SOCKET = 1, SCM_RIGHTS = 1, SO_RCVTIMEO = 20, SO_SNDTIMEO = 21, SHUT_WR = 1, AT_FDCWD = -100,
       O_CLOEXEC = 02000000, O_NONBLOCK = 04000, MSG_NOSIGNAL = 0x4000, CLOCK_MONOTONIC = 1, EINTR = 4, SIGCHLD = 17, X_OK = 1,
       DEMAND = 253 };

struct time { long seconds, nanoseconds; };
struct piece { const char *base; word length; };
struct message { void *name; unsigned name_length; struct piece *pieces; word count; void *control;
                 word control_length; unsigned flags; };
struct rights { word length; int level, type, descriptor, padding; };
struct address { unsigned short family; char path[108]; };

#define LIMIT (4 << 20) /* bytes of a request: containerd refuses configurations above 2 MiB */
#define STATUS_S 5
#define ANSWER_S 120
#define VERSIONS "\"0.1.0\",\"0.2.0\",\"0.3.0\",\"0.3.1\",\"0.4.0\",\"1.0.0\",\"1.1.0\""
#define TEXT(text) { text, sizeof(text) - 1 }

#define OUTPUT (1 << 16)

static char request[LIMIT + 2 * OUTPUT];
static char answer[LIMIT];
static char output[OUTPUT];
static word input; /* where standard input begins in the request */

static word length_of(const char *text)
{
	word length = 0;

	while (text[length])
		length++;
	return length;
}

static int is(const char *one, const char *other)
{
	while (*one && *one == *other)
		one++, other++;
	return *one == *other;
}

static const char *after(const char *text, const char *prefix)
{
	while (*prefix)
		if (*text++ != *prefix++)
			return 0;
	return text;
}

static const char *variable(char **environment, const char *name)
{
	const char *value;

	for (; *environment; environment++)
		if ((value = after(*environment, name)) && *value == '=')
			return value + 1;
	return 0;
}

static void __attribute__((noreturn)) leave(int status)
{
	for (;;)
		call(SYS_exit, status, 0, 0, 0, 0);
}

static void print(int descriptor, const char *text, word length)
{
	long written;

	while (length) {
		written = call(SYS_write, descriptor, (long)text, length, 0, 0);
		if (written == -EINTR)
			continue;
		if (written <= 0)
			return;
		text += written, length -= written;
	}
}

static void __attribute__((noreturn)) fail(const char *code, const char *message, const char *details)
{
	const struct piece parts[] = {
		TEXT("{\"cniVersion\":\"1.0.0\",\"code\":"), { code, length_of(code) },
		TEXT(",\"msg\":\""), { message, length_of(message) },
		TEXT("\",\"details\":\""), { details, length_of(details) }, TEXT("\"}\n"),
	};

	for (word i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
		print(1, parts[i].base, parts[i].length);
	leave(1);
}

static long now(void)
{
	struct time time = { 0, 0 };

	call(SYS_clock, CLOCK_MONOTONIC, (long)&time, 0, 0, 0);
	return time.seconds * 1000 + time.nanoseconds / 1000000;
}

static long seconds_to_wait(const char *text)
{
	long seconds = 0;

	if (!text || !*text)
		return 20;
	for (; *text >= '0' && *text <= '9' && seconds < 600; text++)
		seconds = seconds * 10 + (*text - '0');
	return seconds < 600 ? seconds : 600;
}

static int reach(const char *path, long wait_ms, long answer_s)
{
	struct address address = { AF_UNIX, "" };
	struct time pause = { 0, 20000000 }, limit = { answer_s, 0 };
	word length = length_of(path);
	long until = now() + wait_ms;
	int descriptor;

	if (length >= sizeof(address.path))
		fail("4", "PODWIRE_CNI_SOCKET is longer than a socket path can be", "");
	for (word i = 0; i < length; i++)
		address.path[i] = path[i];
	for (;;) {
		descriptor = call(SYS_socket, AF_UNIX, SOCK_STREAM | O_CLOEXEC, 0, 0, 0);
		if (descriptor < 0)
			fail("5", "cannot make a socket", "");
		call(SYS_setsockopt, descriptor, SOL_SOCKET, SO_RCVTIMEO, (long)&limit, sizeof(limit));
		call(SYS_setsockopt, descriptor, SOL_SOCKET, SO_SNDTIMEO, (long)&limit, sizeof(limit));
		if (!call(SYS_connect, descriptor, (long)&address, 3 + length, 0, 0))
			return descriptor;
		call(SYS_close, descriptor, 0, 0, 0, 0);
		if (now() >= until)
			return -1;
		call(SYS_poll_sleep, (long)&pause, 0, 0, 0, 0);
	}
}

static word gather(char **environment)
{
	static const char head[] = "PODWIRE1";
	word used = sizeof(head);
	long got;

	for (word i = 0; i < sizeof(head); i++)
		request[i] = head[i];
	for (; *environment; environment++) {
		word length = length_of(*environment) + 1;

		if (!after(*environment, "CNI_"))
			continue;
		if (used + length + 1 >= LIMIT)
			fail("4", "the environment is too large", "");
		for (word i = 0; i < length; i++)
			request[used++] = (*environment)[i];
	}
	request[used++] = 0;
	input = used;
	for (;;) {
		got = call(SYS_read, 0, (long)(request + used), LIMIT - used, 0, 0);
		if (got == -EINTR)
			continue;
		if (got < 0)
			fail("5", "cannot read standard input", "");
		if (got == 0)
			return used;
		used += got;
		if (used == LIMIT)
			fail("6", "the network configuration is larger than 4 MiB", "");
	}
}

static int hand_over(int descriptor, word length, int netns)
{
	struct rights rights = { sizeof(word) + 3 * sizeof(int), SOL_SOCKET, SCM_RIGHTS, netns, 0 };
	struct piece piece = { request, length };
	struct message message = { 0, 0, &piece, 1, 0, 0, 0 };
	long sent;

	if (netns >= 0)
		message.control = &rights, message.control_length = sizeof(rights);
	while (piece.length) {
		sent = call(SYS_sendmsg, descriptor, (long)&message, MSG_NOSIGNAL, 0, 0);
		if (sent == -EINTR)
			continue;
		if (sent <= 0)
			return 0;
		message.control = 0, message.control_length = 0;
		piece.base += sent, piece.length -= sent;
	}
	return !call(SYS_shutdown, descriptor, SHUT_WR, 0, 0, 0);
}

static word receive(int descriptor, const char *code)
{
	word used = 0;
	long got;

	do {
		got = call(SYS_read, descriptor, (long)(answer + used), sizeof(answer) - 2 - used, 0, 0);
		if (got > 0)
			used += got;
	} while (got > 0 || got == -EINTR);
	call(SYS_close, descriptor, 0, 0, 0, 0);
	if (!used)
		fail(code, "the podwire agent did not finish the request, try again later",
		     got ? "no answer came in time" : "the connection ended before an answer");
	answer[used] = answer[used + 1] = 0;
	return used;
}

static void __attribute__((noreturn)) finish(const char *text, word length)
{
	print(1, text + 1, length - 1);
	leave((unsigned char)text[0]);
}

static word append(char *buffer, word used, const char *text, word limit)
{
	while (*text && used < limit)
		buffer[used++] = *text++;
	buffer[used] = 0;
	return used;
}

/* Finds an executable plugin in CNI_PATH. */
static const char *find(char **environment, const char *plugin)
{
	static char path[4096 + 1];
	const char *folders = variable(environment, "CNI_PATH");
	word used;

	while (folders && *folders) {
		for (used = 0; *folders && *folders != ':' && used < 4096 - 256; folders++)
			path[used++] = *folders;
		while (*folders && *folders++ != ':')
			;
		used = append(path, used, "/", 4096);
		append(path, used, plugin, 4096);
		if (!call(SYS_access, AT_FDCWD, (long)path, X_OK, 0, 0))
			return path;
	}
	return 0;
}

/* Runs a plugin with a command; its output and the length of that. Returns its exit status. */
static int run(char **environment, const char *verb, const char *plugin, word length, word *printed)
{
	static char command[64];
	const char *path = find(environment, plugin);
	char *const arguments[] = { (char *)path, 0 };
	int ends[2], status = 0, opened;
	long child, got;
	word sent = input;

	*printed = 0;
	if (!path)
		return 127;
	append(command, append(command, 0, "CNI_COMMAND=", 60), verb, 60);
	for (char **entry = environment; *entry; entry++)
		if (after(*entry, "CNI_COMMAND="))
			*entry = command;
	opened = call(SYS_memfd, (long)"stdin", 0, 0, 0, 0);
	while (sent < length && (got = call(SYS_write, opened, (long)(request + sent), length - sent, 0, 0)) > 0)
		sent += got;
	if (opened < 0 || sent < length || call(SYS_seek, opened, 0, 0, 0, 0) || call(SYS_pipe, (long)ends, O_CLOEXEC, 0, 0, 0))
		fail("5", "cannot run the plugin for addresses", "");
	child = call(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	if (!child) {
		call(SYS_dup, opened, 0, 0, 0, 0);
		call(SYS_dup, ends[1], 1, 0, 0, 0);
		call(SYS_execve, (long)path, (long)arguments, (long)environment, 0, 0);
		leave(127);
	}
	call(SYS_close, ends[1], 0, 0, 0, 0);
	call(SYS_close, opened, 0, 0, 0, 0);
	do {
		got = call(SYS_read, ends[0], (long)(output + *printed), OUTPUT - *printed, 0, 0);
		if (got > 0)
			*printed += got;
	} while (got > 0 || got == -EINTR);
	call(SYS_close, ends[0], 0, 0, 0, 0);
	while (call(SYS_wait, child, (long)&status, 0, 0, 0) == -EINTR)
		;
	return status & 0x7f ? 128 : status >> 8 & 0xff;
}

/* Puts a plugin's exit status and output behind the variables of the request; returns the request's new length. */
static word insert(word length, int status, word printed)
{
	char head[] = "CNI_PODWIRE_IPAM=000 ";
	word size = sizeof(head) - 1 + printed + 1, at = input - 1;

	head[17] += status / 100, head[18] += status / 10 % 10, head[19] += status % 10;
	for (word i = length; i > at; i--)
		request[i - 1 + size] = request[i - 1];
	for (word i = 0; i < sizeof(head) - 1; i++)
		request[at++] = head[i];
	for (word i = 0; i < printed; i++)
		request[at++] = output[i] ? output[i] : ' ';
	request[at] = 0;
	input += size;
	return length + size;
}

void __attribute__((noreturn, used)) begin(word *stack)
{
	char **environment = (char **)(stack + 1 + stack[0] + 1);
	const char *command = variable(environment, "CNI_COMMAND");
	const char *path = variable(environment, "PODWIRE_CNI_SOCKET");
	const char *netns = variable(environment, "CNI_NETNS");
	static const char about[] = "podwire-cni: hands CNI requests to the podwire agent of this node\n"
				    "CNI protocol versions supported: 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0\n";
	static const char version[] = "{\"cniVersion\":\"1.1.0\",\"supportedVersions\":[" VERSIONS "]}\n";
	const char *code, *verb, *plugin, *final;
	int descriptor, opened = -1, status, outcome;
	word length, used, printed;
	long wait;

	if (!command || !*command) {
		print(2, about, sizeof(about) - 1);
		leave(0);
	}
	if (is(command, "VERSION")) {
		print(1, version, sizeof(version) - 1);
		leave(0);
	}
	status = is(command, "STATUS");
	code = status ? "50" : "11";
	length = gather(environment);
	wait = seconds_to_wait(variable(environment, "PODWIRE_CNI_WAIT_S"));
	if (status && wait > STATUS_S)
		wait = STATUS_S;
	if (netns && *netns)
		opened = call(SYS_open_at, AT_FDCWD, (long)netns, O_CLOEXEC | O_NONBLOCK, 0, 0);
	for (int round = 0; round < 2; round++) {
		descriptor = reach(path && *path ? path : "/run/podwire/cni.sock", 1000 * wait,
				   !status ? ANSWER_S : wait ? wait : 1);
		if (descriptor < 0 && status)
			fail(code, "the podwire agent of this node does not answer", "pods that run are not affected");
		if (descriptor < 0)
			fail(code, "the podwire agent of this node does not answer, try again later", "");
		if (!hand_over(descriptor, length, opened))
			fail(code, "the podwire agent closed the connection, try again later", "");
		used = receive(descriptor, code);
		if ((unsigned char)answer[0] != DEMAND)
			finish(answer, used);
		verb = answer + 1, plugin = verb + length_of(verb) + 1, final = plugin + length_of(plugin) + 1;
		outcome = run(environment, verb, plugin, length, &printed);
		if (final < answer + used)
			finish(final, answer + used - final);
		length = insert(length, outcome, printed);
	}
	fail("5", "the podwire agent demands a plugin for addresses again and again", "");
}
