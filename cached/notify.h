/* SPDX-License-Identifier: Apache-2.0 */
/* What the service manager is told (sd_notify(3), without its library) and what it gave: a line to
 * $NOTIFY_SOCKET, and sockets that listen already. Main's thread. */
#ifndef STOKE_CACHED_NOTIFY_H
#define STOKE_CACHED_NOTIFY_H

#include "common/base.h"

/* text: "READY=1" and the like, by lines; nothing happens when nobody wants to hear it */
void notify(const char *text);
/* how often the manager wants to hear "WATCHDOG=1", half of its limit; 0: never */
uint64_t notify_watchdog_us(void);

/* Sockets that are given: by the manager ($LISTEN_FDS, from 3 on), or by the program that ran
 * before in this process (notify_give; *ret_ours). ret: max descriptors. Asked once: the
 * environment is cleared. Returns how many */
unsigned notify_sockets(int *ret, unsigned max, bool *ret_ours);
/* The index that the program before wrote down (snapshot.h); -1: none. Asked once, as above */
int notify_index(void);
/* leaves n sockets and the index (-1: none) open for the program that is executed next, and closes
 * all else then */
int notify_give(const int *fd, unsigned n, int index_fd);

#endif
