/* SPDX-License-Identifier: Apache-2.0 */
/* Which address is announced. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>

#include "cached/network.h"

static const char *const address[] = {"127.0.0.1", "192.168.7.9", "10.1.2.3", "fd00::5",
				      "10.200.0.1"};
static struct sockaddr_storage room[ARRAY_LEN(address)];
static struct ifaddrs list[ARRAY_LEN(address)];

static int make(void **state)
{
	(void)state;
	for (unsigned i = 0; i < ARRAY_LEN(address); i++) {
		struct sockaddr_in *v4 = (struct sockaddr_in *)&room[i];
		struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&room[i];
		bool six = strchr(address[i], ':');

		room[i].ss_family = six ? AF_INET6 : AF_INET;
		inet_pton(room[i].ss_family, address[i],
			  six ? (void *)&v6->sin6_addr : (void *)&v4->sin_addr);
		list[i].ifa_flags = IFF_UP | (i ? 0 : IFF_LOOPBACK);
		list[i].ifa_addr = (struct sockaddr *)&room[i];
		list[i].ifa_next = i + 1 < ARRAY_LEN(address) ? &list[i + 1] : NULL;
	}
	return 0;
}

static void expect(const char *networks, int status, const char *want)
{
	char got[MEMBER_ADDR_MAX] = "";
	struct str err = STR_INIT;

	assert_int_equal(network_pick(networks, list, got, &err), status);
	if (want)
		assert_string_equal(got, want);
	else
		assert_non_null(strstr(str_c(&err), "--group-network"));
	str_fini(&err);
}

static void networks_pick_in_their_own_order(void **state)
{
	(void)state;
	expect(NULL, 0, "192.168.7.9");
	expect("10.0.0.0/8", 0, "10.1.2.3");
	expect("10.200.0.0/15,10.0.0.0/8", 0, "10.200.0.1");
	expect("172.16.0.0/12,fd00::/8", 0, "fd00::5");
	expect("10.1.2.3/32", 0, "10.1.2.3");
	expect("0.0.0.0/0", 0, "127.0.0.1"); /* it was asked for */
	expect("10.1.2.4/31", -EADDRNOTAVAIL, NULL);
	list[2].ifa_flags = 0; /* down */
	expect("10.0.0.0/8", 0, "10.200.0.1");
	list[2].ifa_flags = IFF_UP;
}

static void what_is_no_network_is_refused(void **state)
{
	(void)state;
	expect("10.0.0.0", -EINVAL, NULL);
	expect("10.0.0.0/33", -EINVAL, NULL);
	expect("fd00::/129", -EINVAL, NULL);
	expect("nowhere/8", -EINVAL, NULL);
	expect("172.16.0.0/12,", -EINVAL, NULL);
	expect("", -EINVAL, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(networks_pick_in_their_own_order),
		cmocka_unit_test(what_is_no_network_is_refused),
	};

	return cmocka_run_group_tests(tests, make, NULL);
}
