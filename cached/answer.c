/* SPDX-License-Identifier: Apache-2.0 */
/* Answers on their way out. On the connection's loop, but for send_run, which runs in a thread of
 * the disk that the bytes lie on: sendfile waits for cold pages even when the socket does not
 * block.
 *
 * The queue is written in order. Memory goes out here, several answers in one call; for a block's
 * file the connection is lent to the disk thread until sent_job comes back (all sent, socket full,
 * or broken), and nobody else writes meanwhile.
 *
 * A disk may fail or hang. The thread waits for the first byte of the file before it sends the
 * header, so in most cases nothing has gone out yet, and the chain is asked again. Else the
 * connection ends, and the asker asks elsewhere. A call whose thread hangs is left to that thread.
 *
 *	send_state	by			may become
 *	WAITS		lend			SENDS (thread: the first byte is there), LEFT (the
 *						disk hangs; the thread sends nothing any more)
 *	SENDS		thread			none: when it hangs now, the connection ends */
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "cached/conn.h"
#include "common/block/blockfile.h"
#include "common/clock.h"

enum {
	IOV_MAX_ANSWERS = 16,
	TURN_BYTES = 1 << 20, /* then others of the loop have their turn */
	SLICE = 1 << 20,      /* the same for a disk thread, when somebody waits for it */
};

enum { WAITS, SENDS, LEFT };

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
	if (len > MSG_REASON_MAX) { /* a ring, a list: as many as may wait as of blocks */
		k->memory_len = len;
		k->conn->memory_bytes += len;
	}
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

	if (c->held.n >= CONN_MAX_FDS || passed_add(p, &c->held, &k->key) < 0)
		return false;
	if (!blockfile_is_whole(k->data.file->fd, &k->key)) {
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

struct shed {
	struct disk_job job;
	struct loop_job done, late;
	struct conn *conn;
	struct store *store;
	struct loop *loop;
	struct block_key key;
	int result;
	struct blob_file *file;
};

static int shed_run(struct disk_job *job)
{
	struct shed *s = container_of(job, struct shed, job);

	return store_file(s->store, &s->key, &s->file);
}

static void shed_end(struct disk_job *job, int status)
{
	struct shed *s = container_of(job, struct shed, job);

	s->result = status;
	loop_post(s->loop, &s->done);
}

static void shed_free(struct loop_job *job)
{
	struct shed *s = container_of(job, struct shed, late);

	if (s->file)
		blob_file_unref(s->file);
	free(s);
}

/* behind done in the loop */
static void shed_late(struct disk_job *job, int status)
{
	struct shed *s = container_of(job, struct shed, job);

	(void)status;
	loop_post(s->loop, &s->late);
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
	struct shed *s = container_of(job, struct shed, done);
	struct conn *c = s->conn;
	bool good = s->result == 0;
	struct list_node *n;

	c->shedding = NULL;
	c->busy++;
	list_for_each(n, &c->out)
	{
		struct call *k = container_of(n, struct call, link);

		if (good && k->memory_len && k->data.len && block_key_eq(&k->key, &s->key))
			shed_answer(k, s->file);
	}
	if (s->result != -ETIMEDOUT)
		shed_free(&s->late);
	if (good) {
		conn_run(c); /* there may be room for requests now */
		answer_shed(c);
	}
	c->busy--;
	conn_settle(c);
}

static bool shed_start(struct conn *c, const struct block_key *k)
{
	struct shed *s = calloc(1, sizeof(*s));

	if (!s)
		return false;
	*s = (struct shed){
		.job = {.run = shed_run, .end = shed_end, .late = shed_late},
		.done.fn = shed_done,
		.late.fn = shed_free,
		.conn = c,
		.store = c->worker->conf->store,
		.loop = c->worker->loop,
		.key = *k,
	};
	c->shedding = s; /* bounded: one per connection */
	if (store_push(s->store, k, &s->job) == 0)
		return true;
	c->shedding = NULL;
	free(s);
	return false;
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

		if (k->memory_len && k->data.len && shed_start(c, &k->key))
			return;
	}
}

/* --- lent to a disk thread --- */

/* as send and sendfile, but -errno */
static ssize_t send_head(const struct call *k, const uint8_t *p, size_t n)
{
	const struct iovec v = {.iov_base = (void *)(uintptr_t)p, .iov_len = n};
	ssize_t r;

	if (k->send_tls)
		return tls_send(k->send_tls, &v, 1);
	r = send(k->send_fd, p, n, MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE);
	return r < 0 ? -errno : r;
}

static ssize_t send_file(const struct call *k, int fd, uint64_t off, size_t n)
{
	off_t at = (off_t)off;
	ssize_t r;

	if (k->send_tls)
		return tls_sendfile(k->send_tls, fd, off, n);
	r = sendfile(k->send_fd, fd, &at, n);
	return r < 0 ? -errno : r == 0 ? -ENODATA : r;
}

/* as much as the socket takes: 0 all sent, -EAGAIN, 1 another connection waits for this thread and
 * goes first, -EBADMSG the file is short, other errors of the socket or the disk */
static int send_file_answer(struct call *k)
{
	size_t data_end = FRAME_HEADER + k->data.len, end = answer_len(k), begun = k->sent;

	while (k->sent < end) {
		ssize_t n;

		diskq_progress(&k->send_job);
		if (k->sent - begun >= SLICE && diskq_waiting(k->send_job.q))
			return 1;
		if (k->sent < FRAME_HEADER) {
			n = send_head(k, k->head + k->sent, FRAME_HEADER - k->sent);
		} else {
			bool data = k->sent < data_end;
			const struct blob *b = data ? &k->data : &k->sums_file;
			size_t skip = k->sent - (data ? FRAME_HEADER : data_end);

			n = send_file(k, b->file->fd, b->off + skip,
				      MIN(b->len - skip, (size_t)SLICE));
			if (n == -ENODATA)
				return -EBADMSG;
		}
		if (n == -EINTR)
			continue;
		if (n < 0)
			return (int)n;
		k->sent += (size_t)n;
	}
	return 0;
}

static struct store *store_of(const struct call *k)
{
	return k->conn->worker->conf->store;
}

/* k->conn is there as long as the thread has not been given up, or has sent something */
static int send_run(struct disk_job *job)
{
	struct call *k = container_of(job, struct call, send_job);
	struct store *store = store_of(k);
	unsigned waits = WAITS;
	int r = k->sent ? 0 : store_touch(store, &k->key, &k->data);

	if (r < 0)
		return r;
	if (!atomic_compare_exchange_strong(&k->send_state, &waits, SENDS))
		return -EIO;
	r = send_file_answer(k);
	if (r == -EBADMSG || r == -EIO)
		store_failed(store, &k->key, &k->data, r);
	return r;
}

static void send_end(struct disk_job *job, int status)
{
	struct call *k = container_of(job, struct call, send_job);
	struct conn *c = k->conn;
	unsigned waits = WAITS;

	k->sent_result = status;
	if (status == -ETIMEDOUT)
		(void)atomic_compare_exchange_strong(&k->send_state, &waits, LEFT);
	loop_post(c->worker->loop, &k->sent_job);
}

static void late_job(struct loop_job *job)
{
	struct call *k = container_of(job, struct call, late_job);

	blob_fini(&k->data);
	blob_fini(&k->sums_file);
	if (k->owns_fd) {
		tls_free(k->send_tls);
		closep(&k->send_fd);
	}
	free(k);
}

/* behind sent_job in the loop */
static void send_late(struct disk_job *job, int status)
{
	struct call *k = container_of(job, struct call, send_job);

	(void)status;
	loop_post(k->late_loop, &k->late_job);
}

static void answer_sent(struct conn *c, struct call *k)
{
	metric_add(c->worker->conf->counters->bytes_sent, k->sent);
	call_free(k);
}

/* The thread keeps k. What the connection still needs of it goes on in a new call. */
static void send_left(struct conn *c, struct call *k)
{
	bool nothing_sent = atomic_load(&k->send_state) == LEFT;
	bool goes_on = nothing_sent && c->state != CONN_CLOSED;
	struct call *next = goes_on ? call_new(c, &k->frame) : NULL;

	if (next) {
		next->key = k->key;
		next->off = k->off;
		next->len = k->len;
		next->hot = k->hot;
		next->asked_again = k->asked_again;
	} else {
		conn_drop(c, REJECT_NONE);
		if (k->hot)
			hot_end(c->worker->conf->hot, &k->key);
		if (!nothing_sent) {
			k->owns_fd = true;
			c->fd = -1;
			c->tls = NULL;
		}
	}
	list_del(&k->link);
	c->n_calls--;
	if (next)
		serve_again(next);
}

/* nothing has gone out: it is asked for again */
static void send_again(struct call *k)
{
	list_del(&k->link);
	blob_fini(&k->data);
	blob_fini(&k->sums_file);
	serve_again(k);
}

static void lend(struct conn *c, struct call *k);

static void sent_job(struct loop_job *job)
{
	struct call *k = container_of(job, struct call, sent_job);
	struct conn *c = k->conn;
	int r = k->sent_result;

	c->lent = false;
	c->written_us = clock_us();
	c->busy++;
	if (r == 0)
		answer_sent(c, k);
	else if (r == 1)
		lend(c, k);
	else if (r == -ETIMEDOUT)
		send_left(c, k);
	else if (r != -EAGAIN && !k->sent && c->state != CONN_CLOSED)
		send_again(k);
	else if (r != -EAGAIN) /* the announced length cannot be kept any more */
		conn_drop(c, REJECT_NONE);
	if (r == -EAGAIN)
		conn_watch(c);
	else if (r != 1)
		conn_run(c);
	c->busy--;
	conn_settle(c);
}

static void lend(struct conn *c, struct call *k)
{
	k->send_job = (struct disk_job){.run = send_run, .end = send_end, .late = send_late};
	k->sent_job.fn = sent_job;
	k->late_job.fn = late_job;
	k->late_loop = c->worker->loop;
	k->send_fd = c->fd;
	k->send_tls = c->tls;
	atomic_store(&k->send_state, WAITS);
	c->lent = true;
	if (store_push_read(&k->data, &k->send_job) < 0) /* bounded: one per connection */
		send_end(&k->send_job, -EHOSTDOWN);
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

static ssize_t send_memory(struct conn *c, struct iovec *v, unsigned n, const struct call *with_fd)
{
	ssize_t r;

	if (!c->tls)
		return send_parts(c, v, n, with_fd);
	r = tls_send(c->tls, v, n);
	if (r >= 0)
		return r;
	errno = (int)-r;
	return -1;
}

bool answer_waits(const struct conn *c)
{
	return !list_empty(&c->out) || (c->tls && tls_wants_write(c->tls));
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
	int r = c->tls && !c->lent ? tls_flush(c->tls) : 0;

	if (r < 0 && r != -EAGAIN) {
		conn_drop(c, REJECT_NONE);
		return;
	}
	while (c->state != CONN_CLOSED && !c->lent && !list_empty(&c->out) && turn < TURN_BYTES) {
		struct call *first = container_of(c->out.next, struct call, link);
		unsigned parts;
		ssize_t n;

		if (needs_disk(first)) {
			lend(c, first);
			return;
		}
		parts = gather(c, v, &with_fd);
		n = send_memory(c, v, parts, with_fd);
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
	if (c->state != CONN_CLOSED && !c->lent && c->last_answer && !answer_waits(c))
		conn_drop(c, REJECT_NONE);
	else
		conn_watch(c);
	answer_shed(c);
}
