/* SPDX-License-Identifier: Apache-2.0 */
/* Fibers by ucontext(3). Thread: the one that runs them.
 *
 *	a fiber is
 *	idle		on s->idle: its stack is kept, the last used first
 *	running		s->now; at most one
 *	waiting		on s->waiting, in the order in which they began to
 *
 * The sanitizers are told of each change of stacks. */
#include "common/fiber.h"

#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>

#include "common/clock.h"
#include "common/list.h"
#include "common/mtx.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

enum { STACK_BYTES = 512 << 10, GUARD_BYTES = 4096 };

struct fiber {
	struct list_node link;
	ucontext_t context;
	unsigned char *stack; /* the guard page first */
	void (*fn)(void *arg);
	void *arg;
	int fd;
	short events, revents;
	uint64_t until_us;
	void *fake, *tsan; /* the sanitizers' */
};

struct fibers {
	ucontext_t home;
	struct fiber *now;
	struct list_node idle, waiting;
	unsigned n_waiting;
	void (*blocks)(void *arg);
	void *arg;
	const void *home_stack; /* the sanitizers' */
	size_t home_bytes;
	void *fake, *tsan;
};

static _Thread_local struct fibers *here; /* the set of the fiber that runs; NULL: none does */

/* --- changing stacks --- */

static void sanitizer_leaves(void **fake, const void *stack, size_t bytes, void *tsan)
{
#if defined(__SANITIZE_ADDRESS__)
	__sanitizer_start_switch_fiber(fake, stack, bytes);
#endif
#if defined(__SANITIZE_THREAD__)
	__tsan_switch_to_fiber(tsan, 0);
#endif
	(void)fake;
	(void)stack;
	(void)bytes;
	(void)tsan;
}

/* s: in a fiber, else NULL */
static void sanitizer_arrives(void *fake, struct fibers *s)
{
#if defined(__SANITIZE_ADDRESS__)
	__sanitizer_finish_switch_fiber(fake, s ? &s->home_stack : NULL, s ? &s->home_bytes : NULL);
#endif
	(void)fake;
	(void)s;
}

static void go_home(struct fibers *s, struct fiber *f)
{
	sanitizer_leaves(&f->fake, s->home_stack, s->home_bytes, s->tsan);
	swapcontext(&f->context, &s->home);
	sanitizer_arrives(f->fake, s);
}

static void go_on(struct fibers *s, struct fiber *f)
{
#if defined(__SANITIZE_THREAD__)
	s->tsan = __tsan_get_current_fiber();
#endif
	s->now = f;
	here = s;
	sanitizer_leaves(&s->fake, f->stack + GUARD_BYTES, STACK_BYTES, f->tsan);
	swapcontext(&s->home, &f->context);
	sanitizer_arrives(s->fake, NULL);
	here = NULL;
	s->now = NULL;
}

/* a fiber's whole life: one function after the other */
static void live(void)
{
	struct fibers *s = here;
	struct fiber *f = s->now;

	sanitizer_arrives(NULL, s);
	for (;;) {
		f->fn(f->arg);
		list_add_head(&s->idle, &f->link);
		go_home(s, f);
	}
}

/* --- making them --- */

static void fiber_free(struct fiber *f)
{
#if defined(__SANITIZE_THREAD__)
	__tsan_destroy_fiber(f->tsan);
#endif
	munmap(f->stack, GUARD_BYTES + STACK_BYTES);
	free(f);
}

/* by its own: getcontext(3) returns twice for all that the compiler knows */
static bool prepare(struct fiber *f)
{
	if (getcontext(&f->context) < 0)
		return false;
	f->context.uc_stack.ss_sp = f->stack + GUARD_BYTES;
	f->context.uc_stack.ss_size = STACK_BYTES;
	makecontext(&f->context, live, 0);
	return true;
}

static struct fiber *fiber_new(void)
{
	struct fiber *f = calloc(1, sizeof(*f));
	void *p = MAP_FAILED;

	if (f)
		p = mmap(NULL, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
	if (p == MAP_FAILED) {
		free(f);
		return NULL;
	}
	f->stack = p;
	if (mprotect(p, GUARD_BYTES, PROT_NONE) < 0 || !prepare(f)) {
		munmap(p, GUARD_BYTES + STACK_BYTES);
		free(f);
		return NULL;
	}
#if defined(__SANITIZE_THREAD__)
	f->tsan = __tsan_create_fiber(0);
#endif
	return f;
}

int fibers_new(void (*blocks)(void *arg), void *arg, struct fibers **ret)
{
	struct fibers *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	list_init(&s->idle);
	list_init(&s->waiting);
	s->blocks = blocks;
	s->arg = arg;
	*ret = s;
	return 0;
}

void fibers_free(struct fibers *s)
{
	struct list_node *n;

	if (!s)
		return;
	assert(s->n_waiting == 0 && !s->now);
	while ((n = list_pop(&s->idle)))
		fiber_free(container_of(n, struct fiber, link));
	free(s);
}

/* --- running them --- */

int fibers_run(struct fibers *s, void (*fn)(void *arg), void *arg)
{
	struct list_node *n;
	struct fiber *f;

	if (here || s->n_waiting == FIBERS_MAX)
		return -EAGAIN;
	n = list_pop(&s->idle);
	f = n ? container_of(n, struct fiber, link) : fiber_new();
	if (!f)
		return -ENOMEM;
	f->fn = fn;
	f->arg = arg;
	go_on(s, f);
	return 0;
}

unsigned fibers_fds(struct fibers *s, struct pollfd ret[FIBERS_MAX], uint64_t *ret_until_us)
{
	unsigned n = 0;

	*ret_until_us = UINT64_MAX;
	for (struct list_node *l = s->waiting.next; l != &s->waiting; l = l->next) {
		const struct fiber *f = container_of(l, struct fiber, link);

		ret[n++] = (struct pollfd){.fd = f->fd, .events = f->events};
		*ret_until_us = MIN(*ret_until_us, f->until_us);
	}
	return n;
}

void fibers_resume(struct fibers *s, const struct pollfd *fds, unsigned n)
{
	uint64_t now = clock_us();
	struct list_node *l = s->waiting.next;
	unsigned i = 0;

	/* those that wait again are behind the n */
	for (struct list_node *next; i < n; i++, l = next) {
		struct fiber *f = container_of(l, struct fiber, link);

		next = l->next;
		if (!fds[i].revents && now < f->until_us)
			continue;
		f->revents = fds[i].revents;
		list_del(&f->link);
		s->n_waiting--;
		go_on(s, f);
	}
}

/* --- in a fiber --- */

bool fiber_in(void)
{
	return here != NULL;
}

static short wait_until(int fd, short events, uint64_t until_us)
{
	struct fibers *s = here;
	struct fiber *f = s->now;

	assert(!mtx_held()); /* the next fiber would lock it again, in the same thread */
	f->fd = fd;
	f->events = events;
	f->until_us = until_us;
	list_add_tail(&s->waiting, &f->link);
	s->n_waiting++;
	go_home(s, f);
	return f->revents;
}

int fiber_poll(int fd, short events, int timeout_ms)
{
	struct pollfd p = {.fd = fd, .events = events};

	assert(timeout_ms >= 0);
	if (!here)
		return poll(&p, 1, timeout_ms);
	return wait_until(fd, events, clock_us() + (uint64_t)timeout_ms * 1000) != 0;
}

void fiber_sleep_us(uint64_t us)
{
	const struct timespec ts = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};

	if (here)
		(void)wait_until(-1, 0, clock_us() + us);
	else
		nanosleep(&ts, NULL);
}

struct fiber *fiber_self(void)
{
	return here ? here->now : NULL;
}

void fiber_park(void)
{
	(void)wait_until(-1, 0, UINT64_MAX);
}

void fiber_wake(struct fiber *f)
{
	f->until_us = 0;
}

void fiber_yield(void)
{
	(void)wait_until(-1, 0, 0);
}

void fiber_blocks(void)
{
	if (here && here->blocks)
		here->blocks(here->arg);
}
