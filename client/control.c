/* SPDX-License-Identifier: Apache-2.0 */
/* The text side of .control: requests are read line by line, answers kept until they are read. The
 * warm-up itself is warm.c.
 *
 *	state		until
 *	ASKING		the request is complete (its empty line; info: its line)
 *	RUNNING		warm_run returned, in the request's own thread
 *	DONE		the file is closed; what is left of the answer can be read
 *
 * A control has one reference of the file and one of the thread. wake is called without the lock,
 * and control_close waits for calls under way: hence never in a FUSE or loop thread. */
#include "client/control.h"

#include <inttypes.h>
#include <stdarg.h>

#include "client/control_tree.h"
#include "client/warm.h"
#include "common/clock.h"
#include "common/parse.h"
#include "common/thread.h"

enum {
	LINE_MAX_LEN = 1024,
	RUNNING_MAX = 16 /* requests at once; each has threads and takes connections */
};

/* requests that run in this process */
static struct mtx running_lock = MTX_INIT;
static struct cond running_changed = {PTHREAD_COND_INITIALIZER};
static unsigned running;

int control_open(const struct control_conf *conf, void (*wake)(void *arg), void *arg,
		 struct control **ret)
{
	struct control *c = calloc(1, sizeof(*c));

	if (!c)
		return -ENOMEM;
	c->conf = conf;
	c->wake = wake;
	c->wake_arg = arg;
	c->refs = 1;
	mtx_init(&c->lock);
	cond_init(&c->changed);
	list_init(&c->again);
	*ret = c;
	return 0;
}

static void control_unref(struct control *c)
{
	bool last;

	mtx_lock(&c->lock);
	last = --c->refs == 0;
	mtx_unlock(&c->lock);
	if (!last)
		return;
	assert(list_empty(&c->again));
	str_fini(&c->in);
	str_fini(&c->out);
	free(c->inodes);
	tree_ask_free(c->tree);
	cond_fini(&c->changed);
	mtx_fini(&c->lock);
	free(c);
}

/* --- answers --- */

/* calls wake unless the file is closed */
static void wake(struct control *c)
{
	bool open;

	mtx_lock(&c->lock);
	open = !c->closed;
	if (open)
		c->waking++;
	mtx_unlock(&c->lock);
	if (!open)
		return;
	c->wake(c->wake_arg);
	mtx_lock(&c->lock);
	c->waking--;
	cond_broadcast(&c->changed);
	mtx_unlock(&c->lock);
}

void control_say(struct control *c, bool must, const char *fmt, ...)
{
	char line[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	mtx_lock(&c->lock);
	while (must && !c->closed && c->out.len > CONTROL_ANSWER_MAX)
		cond_wait(&c->changed, &c->lock);
	if (!c->closed && c->out.len <= CONTROL_ANSWER_MAX)
		str_add(&c->out, line);
	mtx_unlock(&c->lock);
	wake(c);
}

void control_text(struct control *c, const char *line)
{
	mtx_lock(&c->lock);
	while (!c->closed && c->out.len > CONTROL_ANSWER_MAX)
		cond_wait(&c->changed, &c->lock);
	if (!c->closed)
		str_addf(&c->out, "text %s\n", line);
	mtx_unlock(&c->lock);
	wake(c);
}

bool control_closed(struct control *c)
{
	bool closed;

	mtx_lock(&c->lock);
	closed = c->closed;
	mtx_unlock(&c->lock);
	return closed;
}

void control_as(struct control *c, const struct meta_ctx *who)
{
	c->who = (struct meta_ctx){.uid = who->uid, .gid = who->gid, .pid = who->pid};
	c->who.check = who->uid != 0;
}

size_t control_read(struct control *c, void *buf, size_t cap, bool *ret_end)
{
	size_t n;

	mtx_lock(&c->lock);
	n = MIN(cap, c->out.len);
	if (n > 0) {
		memcpy(buf, c->out.s, n);
		memmove(c->out.s, c->out.s + n, c->out.len - n);
		c->out.len -= n;
		cond_broadcast(&c->changed);
	}
	*ret_end = c->out.len == 0 && c->state != CONTROL_RUNNING;
	mtx_unlock(&c->lock);
	return n;
}

void control_close(struct control *c)
{
	mtx_lock(&c->lock);
	c->closed = true;
	cond_broadcast(&c->changed);
	while (c->waking > 0)
		cond_wait(&c->changed, &c->lock);
	mtx_unlock(&c->lock);
	control_unref(c);
}

void control_wait(void)
{
	mtx_lock(&running_lock);
	while (running > 0)
		cond_wait(&running_changed, &running_lock);
	mtx_unlock(&running_lock);
}

/* --- requests --- */

static void *run(void *arg)
{
	struct control *c = arg;

	if (c->tree)
		tree_run(c, c->tree);
	else
		warm_run(c);
	mtx_lock(&c->lock);
	c->state = CONTROL_DONE;
	mtx_unlock(&c->lock);
	wake(c);
	control_unref(c);
	mtx_lock(&running_lock);
	running--;
	cond_broadcast(&running_changed);
	mtx_unlock(&running_lock);
	return NULL;
}

static int start(struct control *c)
{
	pthread_t thread;
	bool room;
	int r;

	mtx_lock(&running_lock);
	room = running < RUNNING_MAX;
	running += room;
	mtx_unlock(&running_lock);
	if (!room)
		return -EBUSY;
	mtx_lock(&c->lock);
	c->state = CONTROL_RUNNING;
	c->refs++;
	mtx_unlock(&c->lock);
	r = thread_start("warmup", run, c, &thread);
	if (r == 0) {
		pthread_detach(thread);
		return 0;
	}
	mtx_lock(&c->lock);
	c->state = CONTROL_DONE;
	c->refs--;
	mtx_unlock(&c->lock);
	mtx_lock(&running_lock);
	running--;
	mtx_unlock(&running_lock);
	return r;
}

static int info(struct control *c)
{
	mtx_lock(&c->lock);
	str_add(&c->out, c->conf->info);
	str_add(&c->out, "\n");
	c->state = CONTROL_DONE;
	mtx_unlock(&c->lock);
	return str_error(&c->out);
}

/* "warmup fill|check|evict|unpin PARALLEL [UNTIL]" */
static int first_line(struct control *c, char *line)
{
	static const char *const modes[] = {[WARM_FILL] = "fill",
					    [WARM_CHECK] = "check",
					    [WARM_EVICT] = "evict",
					    [WARM_UNPIN] = "unpin"};
	char *save, *word = strtok_r(line, " ", &save);
	char *mode = strtok_r(NULL, " ", &save), *parallel = strtok_r(NULL, " ", &save);
	char *until = parallel ? strtok_r(NULL, " ", &save) : NULL;
	uint64_t n;

	if (word && !strcmp(word, "info") && !mode)
		return info(c);
	if (!word || strcmp(word, "warmup") != 0 || !mode || !parallel ||
	    (until && strtok_r(NULL, " ", &save)))
		return -EINVAL;
	if (until && (strcmp(mode, "fill") != 0 ||
		      parse_u64(until, UINT64_MAX, &c->pin_until) < 0 || !c->pin_until))
		return -EINVAL;
	if (parse_u64(parallel, CONTROL_PARALLEL_MAX, &n) < 0 || n == 0)
		return -EINVAL;
	for (size_t i = 0; i < ARRAY_LEN(modes); i++) {
		if (strcmp(mode, modes[i]) == 0) {
			c->mode = (enum warm_mode)i;
			c->parallel = (unsigned)n;
			c->begun = true;
			return 0;
		}
	}
	return -EINVAL;
}

static int add_inode(struct control *c, const char *line)
{
	uint64_t inode;

	if (parse_u64(line, UINT64_MAX, &inode) < 0)
		return -EINVAL;
	if (c->n_inodes == c->cap_inodes) {
		size_t cap = c->cap_inodes ? c->cap_inodes * 2 : 1024;
		uint64_t *p = realloc(c->inodes, cap * sizeof(*p));

		if (!p)
			return -ENOMEM;
		c->inodes = p;
		c->cap_inodes = cap;
	}
	c->inodes[c->n_inodes++] = inode;
	return 0;
}

static int take_line(struct control *c, char *line)
{
	if (c->state != CONTROL_ASKING)
		return -EBUSY;
	if (!c->begun) {
		int r = tree_ask_parse(line, &c->tree);

		if (r < 0)
			return r;
		return c->tree ? start(c) : first_line(c, line);
	}
	return line[0] ? add_inode(c, line) : start(c);
}

/* one writer at a time: the kernel holds the inode's lock */
int control_write(struct control *c, const void *data, size_t len)
{
	const char *p = data, *end = p + len;
	char empty[1] = "";

	c->asked += len;
	if (c->asked > CONTROL_REQUEST_MAX)
		return -EFBIG;
	while (p < end) {
		const char *nl = memchr(p, '\n', (size_t)(end - p));
		int r;

		str_addn(&c->in, p, (size_t)((nl ? nl : end) - p));
		if (str_error(&c->in) < 0)
			return -ENOMEM;
		if (c->in.len > LINE_MAX_LEN)
			return -EINVAL;
		if (!nl)
			return 0;
		p = nl + 1;
		r = take_line(c, c->in.s ? c->in.s : empty);
		str_reset(&c->in);
		if (r < 0)
			return r;
	}
	return 0;
}
