/*
 * Lets user-mode Linux 6.1 run on processors whose register state is larger than it knows.
 *
 * User-mode Linux keeps the vector registers of a process in 2,696 bytes (HOST_FP_SIZE, arch/x86/um/user-offsets.c). The
 * kernel below takes a state only in its full size (xstateregs_set, arch/x86/kernel/fpu/regset.c), which is 11,008 bytes
 * where the processor has AMX: PTRACE_SETREGSET ends with EFAULT, and the guest dies before its first program. This
 * ptrace(2) writes the known bytes over the full state of the process. No program of a guest uses what lies behind them.
 *
 * scripts/uml compiles it and loads it with LD_PRELOAD. User-mode Linux has one thread that calls ptrace, so one buffer
 * is enough; its kernel stacks are too small for it.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static char full[65536];

static long set_known_registers(pid_t pid, const struct iovec *known)
{
	struct iovec state = { full, sizeof full };

	if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, NT_X86_XSTATE, &state) < 0)
		return -1;
	memcpy(full, known->iov_base, known->iov_len < state.iov_len ? known->iov_len : state.iov_len);
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
	if (request == PTRACE_SETREGSET && address == (void *)NT_X86_XSTATE)
		return set_known_registers(pid, data);
	if (request != PTRACE_PEEKTEXT && request != PTRACE_PEEKDATA && request != PTRACE_PEEKUSER)
		return syscall(SYS_ptrace, request, pid, address, data);
	/* The system call writes the word that it reads; the function of the C library returns it. */
	result = syscall(SYS_ptrace, request, pid, address, &word);
	if (result < 0)
		return result;
	errno = 0;
	return word;
}
