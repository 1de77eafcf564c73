/* SPDX-License-Identifier: Apache-2.0 */
/* Answers on their way out. On the connection's loop, but for send_job, which runs in a thread of
 * the disk that the bytes lie on: sendfile waits for cold pages even when the socket does not
 * block.
 *
 * The queue is written in order. Memory goes out here, several answers in one call; a block's file
 * is lent: the connection belongs to the disk thread until sent_job comes back (all sent, socket
 * full, or broken), and nobody else writes meanwhile. */
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "cached/conn.h"
#include "common/block/blockfile.h"
#include "common/clock.h"

enum {
	IOV_MAX_ANSWERS = 16,
	TURN_BYTES = 1 << 20, /* then others of the loop have their turn */
	SLICE = 1 << 20,      /* the same for a disk thread, when somebody waits for it */
};

struct call *call_new(struct conn *c, const struct frame *f)
{
	struct call *k = calloc(1, sizeof(*k));

	if (!k)
		return NULL;
	k->conn = c;
	k->frame = *f;
	list_init(&k->link);
	c->n_calls++;
	return k;
}

void call_free(struct call *k)
{
	struct conn *c = k->conn;

	list_del(&k->link);
	req_free(k->req);
	blob_fini(&k->data);
	blob_fini(&k->sums_file);
	free(k->tail);
	if (k->hot)
		hot_end(c->worker->conf->hot, &k->key);
	if (k->reserved)
		pool_unreserve(c->worker->conf->env->pool, POOL_UPLOAD, k->reserved);
	c->worker->inline_bytes -= k->inline_len;
	c->memory_bytes -= k->memory_len;
	assert(c->n_calls > 0);
	c->n_calls--;
	free(k);
}

/* --- what an answer consists of --- */

static size_t tail_len(const struct call *k)
{
	return k->sums_file.file ? k->sums_file.len : k->tail_len;
}

static size_t answer_len(const struct call *k)
{
	return FRAME_HEADER + (k->pass_fd ? 0 : k->data.len) + tail_len(k);
}

static bool needs_disk(const struct call *k)
{
	return k->data.file && !k->pass_fd;
}

static void answer_queue(struct call *k, unsigned status, uint32_t flags)
{
	struct conn *c = k->conn;
	const struct frame f = {
		.version = FRAME_VERSION,
		.op = k->frame.op,
		.status = (uint16_t)status,
		.id = k->frame.id,
		.flags = flags,
		.body_len = (uint32_t)(answer_len(k) - FRAME_HEADER),
	};

	list_del(&k->link);
	if (c->state == CONN_CLOSED) {
		call_free(k);
		return;
	}
	req_free(TAKE_PTR(k->req));
	frame_encode(&f, k->head);
	if (list_empty(&c->out))
		c->written_us = clock_us();
	list_add_tail(&c->out, &k->link);
}

void answer_bytes(struct call *k, unsigned status, uint8_t *body, size_t len)
{
	k->tail = body;
	k->tail_len = len;
	answer_queue(k, status, 0);
}

void answer_status(struct call *k, unsigned status, const char *text)
{
	size_t len = text ? strnlen(text, MSG_REASON_MAX) : 0;
	uint8_t *body = len ? malloc(len) : NULL;

	if (body)
		memcpy(body, text, len);
	answer_bytes(k, status, body, body ? len : 0);
}

void answer_filling(struct call *k)
{
	struct call *interim = call_new(k->conn, &k->frame);

	if (interim) /* without memory for it the asker merely may ask another, too */
		answer_queue(interim, ST_FILLING, 0);
}

static bool read_now(int fd, uint8_t *p, size_t n, uint64_t off)
{
	struct iovec v = {.iov_base = p, .iov_len = n};

	return preadv2(fd, &v, 1, (off_t)off, RWF_NOWAIT) == (ssize_t)n;
}

/* a small range whose pages are in memory is read here and now: cheaper than a way through another
 * thread. false: nothing changed */
static bool read_inline(struct call *k, uint64_t sums_off, size_t sums_len)
{
	struct worker *w = k->conn->worker;
	size_t len = k->data.len + sums_len;
	uint8_t *p;

	if (k->data.len > CONN_INLINE_MAX || w->inline_bytes + len > WORKER_INLINE_BYTES)
		return false;
	p = malloc(len);
	if (!p)
		return false;
	if (!read_now(k->data.file->fd, p, k->data.len, k->data.off) ||
	    !read_now(k->data.file->fd, p + k->data.len, sums_len, sums_off)) {
		free(p);
		return false;
	}
	blob_fini(&k->data);
	k->tail = p;
	k->tail_len = k->inline_len = len;
	w->inline_bytes += len;
	return true;
}

static uint64_t sums_off(const struct call *k)
{
	return k->key.size + msg_sums_len(k->off);
}

/* behind the data of a file */
static struct blob sums_of_file(const struct call *k)
{
	struct blob sums = blob_slice(&k->data, 0, 0);

	sums.off = sums_off(k);
	sums.len = msg_sums_len(k->len);
	return sums;
}

/* The descriptor is counted before it is looked at: a file that is removed after that is known to
 * be held. false: bytes are sent instead */
static bool pass(struct call *k)
{
	struct conn *c = k->conn;
	struct passed *p = store_passed(c->worker->conf->store);
	struct stat st;

	if (c->held.n >= CONN_MAX_FDS || passed_add(p, &c->held, &k->key) < 0)
		return false;
	if (fstat(k->data.file->fd, &st) < 0 || st.st_nlink == 0) {
		(void)passed_closed(p, &c->held, &k->key);
		return false;
	}
	counters_fds(c->worker->conf->counters, 1);
	return true;
}

static void answer_file(struct call *k)
{
	struct conn *c = k->conn;

	if ((k->frame.flags & FRAME_WANT_FD) && c->local && pass(k)) {
		k->pass_fd = true;
		answer_queue(k, ST_OK, FRAME_HAS_FD);
		return;
	}
	if (!read_inline(k, sums_off(k), msg_sums_len(k->len)))
		k->sums_file = sums_of_file(k);
	answer_queue(k, ST_OK, 0);
}

void answer_block(struct call *k)
{
	k->data = k->req->data;
	k->req->data = (struct blob){0};
	assert(k->data.len == k->len);
	if (k->data.file) {
		answer_file(k);
		return;
	}
	k->tail_len = msg_sums_len(k->len);
	k->tail = malloc(k->tail_len);
	if (!k->tail) {
		k->tail_len = 0;
		blob_fini(&k->data);
		answer_status(k, ST_NO_MEMORY, NULL);
		return;
	}
	if (k->len == k->key.size && blob_mem(&k->req->sums) && k->req->sums.len == k->tail_len)
		memcpy(k->tail, blob_mem(&k->req->sums), k->tail_len);
	else
		block_sums(&k->key, k->off, blob_mem(&k->data), k->len, k->tail);
	k->memory_len = k->len;
	k->conn->memory_bytes += k->memory_len;
	answer_queue(k, ST_OK, 0);
}

/* --- out of memory's way --- */

static void shed_job(struct workq_job *job)
{
	struct conn *c = container_of(job, struct conn, shed_job);

	c->shed_result = store_file(c->worker->conf->store, &c->shed_key, &c->shed_file);
	loop_post(c->worker->loop, &c->shed_done);
}

/* the same bytes from the file, from where they were sent so far */
static void shed_answer(struct call *k, struct blob_file *file)
{
	blob_fini(&k->data);
	k->data = blob_of_file(blob_file_ref(file), k->off, k->len);
	k->sums_file = sums_of_file(k);
	free(TAKE_PTR(k->tail));
	k->tail_len = 0;
	k->conn->memory_bytes -= k->memory_len;
	k->memory_len = 0;
}

static void shed_done(struct loop_job *job)
{
	struct conn *c = container_of(job, struct conn, shed_done);
	struct blob_file *file = c->shed_result == 0 ? c->shed_file : NULL;
	struct list_node *n;

	c->shedding = false;
	c->busy++;
	list_for_each(n, &c->out)
	{
		struct call *k = container_of(n, struct call, link);

		if (file && k->memory_len && block_key_eq(&k->key, &c->shed_key))
			shed_answer(k, file);
	}
	if (file) {
		blob_file_unref(file);
		conn_run(c); /* there may be room for requests now */
		answer_shed(c);
	}
	c->busy--;
	conn_settle(c);
}

void answer_shed(struct conn *c)
{
	struct list_node *n;

	if (c->state == CONN_CLOSED || c->shedding || !c->memory_bytes || list_empty(&c->out) ||
	    (c->memory_bytes < c->worker->memory_max && clock_us() - c->written_us < CONN_SHED_US))
		return;
	list_for_each(n, &c->out)
	{
		const struct call *k = container_of(n, struct call, link);
		struct workq *q =
			k->memory_len ? store_place(c->worker->conf->store, &k->key) : NULL;

		if (!q)
			continue;
		c->shedding = true;
		c->shed_key = k->key;
		c->shed_job.fn = shed_job;
		c->shed_done.fn = shed_done;
		workq_push_always(q, &c->shed_job); /* bounded: one per connection */
		return;
	}
}

/* --- lent to a disk thread --- */

/* as much as the socket takes: 0 all sent, -EAGAIN, 1 another connection waits for this thread and
 * goes first, -EBADMSG the file is short, other errors of the socket */
static int send_file_answer(struct conn *c, struct call *k)
{
	size_t data_end = FRAME_HEADER + k->data.len, end = answer_len(k), begun = k->sent;
	struct workq *q = store_readers(&k->data);

	while (k->sent < end) {
		ssize_t n;

		if (k->sent - begun >= SLICE && workq_waiting(q))
			return 1;
		if (k->sent < FRAME_HEADER) {
			n = send(c->fd, k->head + k->sent, FRAME_HEADER - k->sent,
				 MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE);
		} else {
			bool data = k->sent < data_end;
			const struct blob *b = data ? &k->data : &k->sums_file;
			size_t skip = k->sent - (data ? FRAME_HEADER : data_end);
			off_t off = (off_t)(b->off + skip);

			n = sendfile(c->fd, b->file->fd, &off, MIN(b->len - skip, (size_t)SLICE));
			if (n == 0)
				return -EBADMSG;
		}
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		k->sent += (size_t)n;
	}
	return 0;
}

static void send_job(struct workq_job *job)
{
	struct conn *c = container_of(job, struct conn, send_job);

	c->sent_result = send_file_answer(c, container_of(c->out.next, struct call, link));
	loop_post(c->worker->loop, &c->sent_job);
}

static void answer_sent(struct conn *c, struct call *k)
{
	metric_add(c->worker->conf->counters->bytes_sent, k->sent);
	call_free(k);
}

static void lend(struct conn *c, const struct call *k);

static void sent_job(struct loop_job *job)
{
	struct conn *c = container_of(job, struct conn, sent_job);
	struct call *k = container_of(c->out.next, struct call, link);
	int r = c->sent_result;

	c->lent = false;
	c->written_us = clock_us();
	c->busy++;
	if (r == 0)
		answer_sent(c, k);
	else if (r == 1)
		lend(c, k);
	else if (r == -EBADMSG || r == -EIO) {
		store_verify(c->worker->conf->store, &k->key);
		conn_drop(c, REJECT_NONE); /* the announced length cannot be kept any more */
	} else if (r != -EAGAIN)
		conn_drop(c, REJECT_NONE);
	if (r == 0)
		conn_run(c);
	else if (r < 0)
		conn_watch(c);
	c->busy--;
	conn_settle(c);
}

static void lend(struct conn *c, const struct call *k)
{
	c->lent = true;
	c->send_job.fn = send_job;
	c->sent_job.fn = sent_job;
	workq_push_always(store_readers(&k->data), &c->send_job); /* bounded: one per connection */
	conn_watch(c);
}

/* --- memory --- */

static unsigned add_part(struct iovec *v, unsigned n, size_t *skip, const void *p, size_t len)
{
	size_t s = MIN(*skip, len);

	*skip -= s;
	if (s == len)
		return n;
	v[n] = (struct iovec){.iov_base = (void *)(uintptr_t)((const uint8_t *)p + s),
			      .iov_len = len - s};
	return n + 1;
}

/* what of the queue can go out in one call: memory answers in a row, or one with its descriptor */
static unsigned gather(struct conn *c, struct iovec *v, const struct call **ret_fd)
{
	struct list_node *node;
	unsigned n = 0, answers = 0;

	*ret_fd = NULL;
	list_for_each(node, &c->out)
	{
		const struct call *k = container_of(node, struct call, link);
		size_t skip = k->sent;

		if (needs_disk(k) || answers == IOV_MAX_ANSWERS || (k->pass_fd && answers))
			break;
		n = add_part(v, n, &skip, k->head, FRAME_HEADER);
		if (k->data.len && !k->pass_fd)
			n = add_part(v, n, &skip, blob_mem(&k->data), k->data.len);
		if (k->tail_len)
			n = add_part(v, n, &skip, k->tail, k->tail_len);
		answers++;
		if (k->pass_fd) {
			*ret_fd = k->sent ? NULL : k;
			break;
		}
	}
	return n;
}

static ssize_t send_parts(struct conn *c, struct iovec *v, unsigned n, const struct call *with_fd)
{
	union {
		struct cmsghdr head;
		char space[CMSG_SPACE(sizeof(int))];
	} control;
	struct msghdr m = {.msg_iov = v, .msg_iovlen = n};

	if (with_fd) {
		memset(&control, 0, sizeof(control));
		m.msg_control = control.space;
		m.msg_controllen = sizeof(control.space);
		control.head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)),
						.cmsg_level = SOL_SOCKET,
						.cmsg_type = SCM_RIGHTS};
		memcpy(CMSG_DATA(&control.head), &with_fd->data.file->fd, sizeof(int));
	}
	return sendmsg(c->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void advance(struct conn *c, size_t n)
{
	while (n) {
		struct call *k = container_of(c->out.next, struct call, link);
		size_t part = MIN(n, answer_len(k) - k->sent);

		k->sent += part;
		n -= part;
		if (k->sent == answer_len(k))
			answer_sent(c, k);
	}
	c->written_us = clock_us();
}

void answer_flush(struct conn *c)
{
	struct iovec v[3 * IOV_MAX_ANSWERS];
	const struct call *with_fd;
	size_t turn = 0;

	while (c->state != CONN_CLOSED && !c->lent && !list_empty(&c->out) && turn < TURN_BYTES) {
		const struct call *first = container_of(c->out.next, struct call, link);
		unsigned parts;
		ssize_t n;

		if (needs_disk(first)) {
			lend(c, first);
			return;
		}
		parts = gather(c, v, &with_fd);
		n = send_parts(c, v, parts, with_fd);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			break;
		if (n < 0) {
			conn_drop(c, REJECT_NONE);
			return;
		}
		advance(c, (size_t)n);
		turn += (size_t)n;
	}
	if (c->state != CONN_CLOSED && !c->lent && c->last_answer && list_empty(&c->out))
		conn_drop(c, REJECT_NONE);
	else
		conn_watch(c);
	answer_shed(c);
}
