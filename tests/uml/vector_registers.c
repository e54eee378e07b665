/*
 * Whether processes and threads keep their vector registers while others run: exit status 0, or 1 when one lost them.
 *
 * Two processes with two threads each hold different values while they wait for a byte from the other thread, and while
 * they write to new pages. See registers.c.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 200
#define PAGE 4096

struct holder {
	char value;
	int from, to;	/* pipes: bytes from the other thread, and to it */
	int lost;
};

static void *hold(void *argument)
{
	struct holder *own = argument;
	char pattern[16], byte = 0;
	unsigned int equal;
	char *pages = mmap(NULL, ROUNDS * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	memset(pattern, own->value, sizeof pattern);
	for (int round = 0; round < ROUNDS; round++) {
		if (write(own->to, &byte, 1) != 1)
			own->lost = 1;
		register long from __asm__("rdi") = own->from;
		register char *into __asm__("rsi") = &byte;
		register long size __asm__("rdx") = 1;
		__asm__ volatile("movdqu (%1), %%xmm8\n\t"
				 "movdqa %%xmm8, %%xmm15\n\t"
				 "xor %%eax, %%eax\n\t" /* read */
				 "syscall\n\t"
				 "movb $1, (%2)\n\t"
				 "movdqu (%1), %%xmm9\n\t"
				 "pcmpeqb %%xmm9, %%xmm8\n\t"
				 "pcmpeqb %%xmm9, %%xmm15\n\t"
				 "pand %%xmm15, %%xmm8\n\t"
				 "pmovmskb %%xmm8, %0\n\t"
				 : "=&r"(equal)
				 : "r"(pattern), "r"(pages + round * PAGE), "r"(from), "r"(into), "r"(size)
				 : "rax", "rcx", "r11", "xmm8", "xmm9", "xmm15", "memory");
		if (equal != 0xffff)
			own->lost = 1;
	}
	return NULL;
}

int main(void)
{
	pid_t child = fork();
	int there[2], back[2], status = 0;
	pthread_t thread;

	if (pipe(there) != 0 || pipe(back) != 0)
		return 2;
	struct holder first = { child == 0 ? 1 : 3, back[0], there[1], 0 };
	struct holder second = { child == 0 ? 2 : 4, there[0], back[1], 0 };
	pthread_create(&thread, NULL, hold, &second);
	hold(&first);
	pthread_join(thread, NULL);
	if (child > 0)
		waitpid(child, &status, 0);
	return first.lost || second.lost || status != 0;
}
