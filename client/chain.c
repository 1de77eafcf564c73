/* SPDX-License-Identifier: Apache-2.0 */
/* The client's stack, built from the bottom. Start only; no thread of its own. */
#include "client/chain.h"

int client_chain_new(const struct client_chain_conf *conf, struct source **ret)
{
	const struct source_object_conf object = {conf->store, conf->volume_name, conf->hash_prefix,
						  conf->codecs};
	const struct source_peer_conf peer = {
		.mode = PEER_OWNER,
		.peers = conf->peers,
		.view = conf->view,
		.self = conf->self,
		.socket = conf->socket,
		.sub_group = conf->sub_group,
		.disk = conf->disk,
		.remote_us = conf->remote_us,
	};
	struct source *s = NULL, *keep = NULL;
	int r = source_object_new(conf->env, &object, &s);

	if (r == 0 && conf->peers)
		r = source_peer_new(conf->env, s, &peer, &s);
	if (r == 0)
		r = source_keep_new(conf->env, s, conf->ram_bytes, &s);
	keep = s;
	if (r == 0)
		r = source_flight_new(conf->env, s, false, &s);
	if (r == 0)
		r = source_front_new(conf->env, s, keep, &s);
	if (r < 0) {
		source_free(s);
		return r;
	}
	*ret = s;
	return 0;
}
