/* SPDX-License-Identifier: Apache-2.0 */
/* How a block is found by the daemon: on its disks, else being fetched already, else at the member
 * that should have it, else in the object store. */
#include "cached/chain.h"

int chain_new(struct req_env *env, const struct chain_conf *conf, struct source **ret,
	      struct store **ret_store)
{
	struct source *top = NULL;
	struct store *store = NULL;
	int r = source_object_new(env, &conf->object, &top);

	if (r == 0 && conf->peer.peers)
		r = source_peer_new(env, top, &conf->peer, &top);
	if (r == 0)
		r = store_new(env, &conf->store, &store);
	if (r == 0)
		r = store_keep_new(store, top, &top);
	if (r == 0)
		r = source_flight_new(env, top, true, &top);
	if (r == 0)
		r = store_top_new(store, top, &top);
	if (!store)
		for (unsigned i = 0; i < conf->store.n_disks; i++)
			(void)disk_close(conf->store.disks[i], UINT64_MAX);
	store_unref(store);
	if (r < 0) {
		source_free(top);
		return r;
	}
	*ret = top;
	*ret_store = store;
	return 0;
}
