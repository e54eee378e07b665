/*
 * The ptrace(2) of user-mode Linux 6.1: runs on processors whose register state is larger than it knows, and copies the
 * vector registers of a process only when they changed.
 *
 * User-mode Linux keeps the vector registers of a process in 2,696 bytes (HOST_FP_SIZE, arch/x86/um/user-offsets.c). The
 * kernel below takes a state only in its full size (xstateregs_set, arch/x86/kernel/fpu/regset.c), which is 11,008 bytes
 * where the processor has AMX: PTRACE_SETREGSET ends with EFAULT, and the guest dies before its first program. This
 * ptrace(2) writes the known bytes over the full state of the process. No program of a guest uses what lies behind them.
 *
 * For each system call and page fault of a process, user-mode Linux reads its vector registers when the process stops
 * and writes them before it goes on (userspace, arch/um/os-Linux/skas/process.c). Mostly they are the same: then nothing
 * is written, which takes 40 % of the time of a system call. What was read last is known until the process goes on. All
 * requests but the few that leave registers alone count as going on.
 *
 * scripts/uml compiles it and loads it with LD_PRELOAD. User-mode Linux has one thread that calls ptrace, so static
 * buffers are enough; its kernel stacks are too small for them.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define PROCESSES 256	/* processes with other remainders of their numbers are remembered side by side */
#define KNOWN_SIZE 4096
#define COMPONENTS_OFFSET 512	/* XSTATE_BV of the header: the components that are not in their initial state */
#define COMPONENTS_KNOWN 0x3ffULL	/* up to PKRU, which ends at byte 2,696 */

struct registers {
	pid_t pid;	/* 0 when nothing is known */
	size_t size;
	char bytes[KNOWN_SIZE];
};

static struct registers last_read[PROCESSES];
static char full[65536];
static size_t full_size;

static struct registers *read_before(pid_t pid)
{
	return &last_read[(unsigned int)pid % PROCESSES];
}

static void forget(pid_t pid)
{
	if (read_before(pid)->pid == pid)
		read_before(pid)->pid = 0;
}

static long get_known_registers(pid_t pid, struct iovec *wanted)
{
	struct registers *before = read_before(pid);

	if (before->pid == pid && before->size <= wanted->iov_len) {
		memcpy(wanted->iov_base, before->bytes, before->size);
		wanted->iov_len = before->size;
		return 0;
	}
	before->pid = 0;
	if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, NT_X86_XSTATE, wanted) < 0)
		return -1;
	if (wanted->iov_len <= sizeof before->bytes) {
		memcpy(before->bytes, wanted->iov_base, wanted->iov_len);
		before->size = wanted->iov_len;
		before->pid = pid;
	}
	return 0;
}

static long set_known_registers(pid_t pid, const struct iovec *known)
{
	struct registers *before = read_before(pid);
	struct iovec state = { full, sizeof full };
	uint64_t components = ~0ULL;

	if (before->pid == pid && before->size == known->iov_len &&
	    memcmp(before->bytes, known->iov_base, known->iov_len) == 0)
		return 0;
	forget(pid);
	if (known->iov_len >= COMPONENTS_OFFSET + sizeof components)
		memcpy(&components, (char *)known->iov_base + COMPONENTS_OFFSET, sizeof components);
	/* The kernel below does not look at components that the header does not name. */
	if (full_size == 0 || (components & ~COMPONENTS_KNOWN) != 0) {
		if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, NT_X86_XSTATE, &state) < 0)
			return -1;
		full_size = state.iov_len;
	}
	state.iov_len = full_size;
	memcpy(full, known->iov_base, known->iov_len < full_size ? known->iov_len : full_size);
	return syscall(SYS_ptrace, PTRACE_SETREGSET, pid, NT_X86_XSTATE, &state);
}

long ptrace(enum __ptrace_request request, ...)
{
	va_list arguments;
	pid_t pid;
	void *address, *data;
	long result, word;

	va_start(arguments, request);
	pid = va_arg(arguments, pid_t);
	address = va_arg(arguments, void *);
	data = va_arg(arguments, void *);
	va_end(arguments);
	switch (request) {
	case PTRACE_GETREGSET:
		if (address == (void *)NT_X86_XSTATE)
			return get_known_registers(pid, data);
		break;
	case PTRACE_SETREGSET:
		if (address == (void *)NT_X86_XSTATE)
			return set_known_registers(pid, data);
		forget(pid);
		break;
	case PTRACE_GETREGS:
	case PTRACE_SETREGS:
	case PTRACE_GETSIGINFO:
		break;
	case PTRACE_PEEKTEXT:
	case PTRACE_PEEKDATA:
	case PTRACE_PEEKUSER:
		/* The system call writes the word that it reads; the function of the C library returns it. */
		result = syscall(SYS_ptrace, request, pid, address, &word);
		if (result < 0)
			return result;
		errno = 0;
		return word;
	default:
		forget(pid);
	}
	return syscall(SYS_ptrace, request, pid, address, data);
}
