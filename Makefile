# SPDX-License-Identifier: Apache-2.0
# make help lists the targets. MODE: debug (default), release, asan, tsan, fuzz, cov. O: where objects go.
MODE ?= debug
O ?= build
B := $(O)/$(MODE)
CC ?= gcc
PREFIX ?= /usr/local
PYTHON ?= /usr/bin/python3
VERSION := 0.1.0

PKGS := libevent_core libevent_extra hiredis libcurl libcrypto libxxhash fuse3 jansson liblz4 libzstd
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
PKG_LIBS := $(shell pkg-config --libs $(PKGS) 2>/dev/null)

WARN := -Wall -Wextra -Wshadow -Wvla -Wundef -Wformat=2 -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith \
	-Wwrite-strings -Wcast-qual -Wnull-dereference
CFLAGS_debug := -O1 -g -Werror
CFLAGS_release := -O2 -g -D_FORTIFY_SOURCE=3 -fstack-protector-strong
CFLAGS_asan := -O1 -g -Werror -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
CFLAGS_tsan := -O1 -g -Werror -Wno-tsan -fsanitize=thread
CFLAGS_fuzz := -O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
CFLAGS_cov := -O0 -g --coverage
LDFLAGS_asan := -fsanitize=address,undefined
LDFLAGS_tsan := -fsanitize=thread
LDFLAGS_fuzz := -fsanitize=address,undefined
LDFLAGS_cov := --coverage
ifeq ($(MODE),fuzz)
CC := clang
endif

CPPFLAGS += -I. -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -DFUSE_USE_VERSION=314 -DSTOKE_VERSION='"$(VERSION)"' \
	$(patsubst -I%,-isystem %,$(filter -I%,$(PKG_CFLAGS)))
CFLAGS := -std=gnu17 $(WARN) -pthread $(CFLAGS_$(MODE)) $(EXTRA_CFLAGS)
LDFLAGS += -pthread $(LDFLAGS_$(MODE))

# a library per folder; who may link whom is what may include whom (docs/architecture.md §7, make lint)
LIBS := proto common object block meta client cached
DIR_proto := proto
DIR_common := common
DIR_object := common/object
DIR_block := common/block
DIR_meta := client/meta
DIR_client := client
DIR_cached := cached
NEED_proto :=
NEED_common := proto
NEED_object := common proto
NEED_block := object common proto
NEED_meta := block object common proto
NEED_client := meta block object common proto
NEED_cached := block object common proto

MAINS := client/main.c cached/main.c
LUA := $(wildcard client/meta/*.lua common/block/*.lua)
src = $(filter-out $(MAINS),$(wildcard $(DIR_$(1))/*.c))
lib = $(B)/lib/lib$(1).a
objs = $(patsubst %.c,$(B)/obj/%.o,$(call src,$(1)))
libs_of = $(call lib,$(1)) $(foreach l,$(NEED_$(1)),$(call lib,$(l)))

PROGRAMS := $(B)/stoke $(B)/stoke-cached
UNITS := $(foreach l,$(LIBS),$(patsubst tests/unit/$(l)/%.c,$(B)/unit/$(l)/%,$(wildcard tests/unit/$(l)/test_*.c)))
FUZZERS := $(patsubst tests/fuzz/%.c,$(B)/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))
BENCHES := $(patsubst bench/%.c,$(B)/bench/%,$(wildcard bench/*.c))
TOOLS := $(patsubst tests/tools/%.c,$(B)/tools/%,$(wildcard tests/tools/*.c))

.PHONY: all deps demo check unit integration fuzz-replay fuzz lint analyze bench install clean help
.SECONDARY:
.DELETE_ON_ERROR:

all: $(PROGRAMS)

define library
$(call lib,$(1)): $(call objs,$(1))
	@mkdir -p $$(@D)
	@rm -f $$@
	ar rcs $$@ $$^
$(B)/unit/$(1)/%: $(B)/obj/tests/unit/$(1)/%.o $(call libs_of,$(1))
	@mkdir -p $$(@D)
	$$(CC) $$(LDFLAGS) -o $$@ $$^ $$(PKG_LIBS) -lcmocka
endef
$(foreach l,$(LIBS),$(eval $(call library,$(l))))

$(B)/obj/proto/%.o: CFLAGS += -Wconversion
$(B)/obj/%.o: %.c Makefile $(LUA)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

$(B)/stoke: $(B)/obj/client/main.o $(call libs_of,client)
	$(CC) $(LDFLAGS) -o $@ $^ $(PKG_LIBS)
$(B)/stoke-cached: $(B)/obj/cached/main.o $(call libs_of,cached)
	$(CC) $(LDFLAGS) -o $@ $^ $(PKG_LIBS)
$(B)/fuzz/%: $(B)/obj/tests/fuzz/%.o $(call libs_of,client)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $(FUZZ_LINK) -o $@ $^ $(PKG_LIBS)
$(B)/bench/%: $(B)/obj/bench/%.o $(call libs_of,client)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ $(PKG_LIBS) -lm
$(B)/tools/%: $(B)/obj/tests/tools/%.o
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ $(PKG_LIBS)

-include $(shell find $(B)/obj -name '*.d' 2>/dev/null)
