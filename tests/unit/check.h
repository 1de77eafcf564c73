/* SPDX-License-Identifier: Apache-2.0 */
/* cmocka with the headers that it expects to be there already. */
#ifndef STOKE_TESTS_UNIT_CHECK_H
#define STOKE_TESTS_UNIT_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
