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
 *   answer    one byte: the exit status; the rest is standard output
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
       SYS_sendmsg = 46, SYS_shutdown = 48, SYS_setsockopt = 54, SYS_exit = 231, SYS_clock = 228, SYS_close = 3 };

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
       SYS_sendmsg = 211, SYS_shutdown = 210, SYS_setsockopt = 208, SYS_exit = 94, SYS_clock = 113, SYS_close = 57 };

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
#else
#error "podwire-cni knows amd64 and arm64"
#endif

enum { AF_UNIX = 1, SOCK_STREAM = 1, SOL_SOCKET = 1, SCM_RIGHTS = 1, SO_RCVTIMEO = 20, SO_SNDTIMEO = 21, SHUT_WR = 1, AT_FDCWD = -100,
       O_CLOEXEC = 02000000, O_NONBLOCK = 04000, MSG_NOSIGNAL = 0x4000, CLOCK_MONOTONIC = 1, EINTR = 4 };

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

static char request[LIMIT];
static char answer[1 << 16];

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

static void __attribute__((noreturn)) relay(int descriptor, const char *code)
{
	int status = -1;
	long got;

	for (;;) {
		got = call(SYS_read, descriptor, (long)answer, sizeof(answer), 0, 0);
		if (got == -EINTR)
			continue;
		if (got <= 0)
			break;
		if (status < 0) {
			status = (unsigned char)answer[0];
			print(1, answer + 1, got - 1);
		} else {
			print(1, answer, got);
		}
	}
	if (status < 0)
		fail(code, "the podwire agent did not finish the request, try again later",
		     got ? "no answer came in time" : "the connection ended before an answer");
	leave(status);
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
	int descriptor, opened = -1, status;
	long wait;
	word length;

	if (!command || !*command) {
		print(2, about, sizeof(about) - 1);
		leave(0);
	}
	if (is(command, "VERSION")) {
		print(1, version, sizeof(version) - 1);
		leave(0);
	}
	status = is(command, "STATUS");
	length = gather(environment);
	wait = seconds_to_wait(variable(environment, "PODWIRE_CNI_WAIT_S"));
	if (status && wait > STATUS_S)
		wait = STATUS_S;
	descriptor = reach(path && *path ? path : "/run/podwire/cni.sock", 1000 * wait,
			   !status ? ANSWER_S : wait ? wait : 1);
	if (descriptor < 0 && status)
		fail("50", "the podwire agent of this node does not answer", "pods that run are not affected");
	if (descriptor < 0)
		fail("11", "the podwire agent of this node does not answer, try again later", "");
	if (netns && *netns)
		opened = call(SYS_open_at, AT_FDCWD, (long)netns, O_CLOEXEC | O_NONBLOCK, 0, 0);
	if (!hand_over(descriptor, length, opened))
		fail(status ? "50" : "11", "the podwire agent closed the connection, try again later", "");
	relay(descriptor, status ? "50" : "11");
}
