# SPDX-License-Identifier: Apache-2.0
# make help lists the targets. MODE: debug (default), release, asan, tsan, fuzz, cov. O: where objects go.
MODE ?= debug
O ?= build
B := $(O)/$(MODE)
CC ?= gcc
PREFIX ?= /usr/local
PYTHON ?= /usr/bin/python3
VERSION := 0.1.0

PKGS := libevent_core libevent_extra hiredis libcurl libssl libcrypto libxxhash fuse3 jansson liblz4 libzstd zlib
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
LIBS := proto common object block meta maint client cmd cached
DIR_proto := proto
DIR_common := common
DIR_object := common/object
DIR_block := common/block
DIR_meta := client/meta
DIR_maint := client/maint
DIR_client := client
DIR_cmd := client/cmd
DIR_cached := cached
NEED_proto :=
NEED_common := proto
NEED_object := common proto
NEED_block := object common proto
NEED_meta := block object common proto
NEED_maint := meta block object common proto
NEED_client := maint meta block object common proto
NEED_cmd := client maint meta block object common proto
NEED_cached := block object common proto

MAINS := client/cmd/main.c cached/main.c
LUA := $(wildcard client/meta/*.lua client/maint/*.lua common/block/*.lua client/meta/*.def)
src = $(filter-out $(MAINS),$(wildcard $(DIR_$(1))/*.c))
lib = $(B)/lib/lib$(1).a
objs = $(patsubst %.c,$(B)/obj/%.o,$(call src,$(1)))
libs_of = $(call lib,$(1)) $(foreach l,$(NEED_$(1)),$(call lib,$(l)))

PROGRAMS := $(B)/stoke $(B)/stoke-cached
UNITS := $(foreach l,$(LIBS),$(patsubst tests/unit/$(l)/%.c,$(B)/unit/$(l)/%,$(wildcard tests/unit/$(l)/test_*.c)))
FUZZERS := $(patsubst tests/fuzz/%.c,$(B)/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))
BENCHES := $(patsubst bench/%.c,$(B)/bench/%,$(wildcard bench/*.c))

.PHONY: all deps demo check check-posix chaos unit units-built integration fuzz-replay fuzzers-built fuzz lint analyze bench benches-built \
	man install clean help
.SECONDARY:
.DELETE_ON_ERROR:

all: $(PROGRAMS) $(B)/faultfs

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
# who embeds a file needs it (EMBED, common/embed.h)
$(patsubst %,$(B)/obj/%.o,client/meta/meta_redis client/meta/meta_format client/meta/meta_config \
	client/maint/repair common/block/registry): $(LUA)
$(B)/obj/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

$(B)/stoke: $(B)/obj/client/cmd/main.o $(call libs_of,cmd)
	$(CC) $(LDFLAGS) -o $@ $^ $(PKG_LIBS)
$(B)/stoke-cached: $(B)/obj/cached/main.o $(call libs_of,cached)
	$(CC) $(LDFLAGS) -o $@ $^ $(PKG_LIBS)
# the sick disk of the tests
$(B)/faultfs: $(B)/obj/tests/faultfs.o $(call libs_of,common)
	$(CC) $(LDFLAGS) -o $@ $^ $(PKG_LIBS)
# what speaks only the protocol of before, for the tests of upgrades: one object differs
OLDER := $(B)/older/stoke $(B)/older/stoke-cached
$(B)/obj/older/hello.o: common/block/hello.c Makefile
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -DHELLO_VERSION_MAX=1 -MMD -MP -c -o $@ $<
$(B)/older/stoke: $(B)/obj/client/cmd/main.o $(B)/obj/older/hello.o $(call libs_of,cmd)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ $(PKG_LIBS)
$(B)/older/stoke-cached: $(B)/obj/cached/main.o $(B)/obj/older/hello.o $(call libs_of,cached)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ $(PKG_LIBS)
older: $(OLDER)
# without libFuzzer (every mode but fuzz) the corpus is replayed by a main of ours
FUZZ_MAIN := $(if $(filter fuzz,$(MODE)),,$(B)/obj/tests/fuzz/replay.o)
$(B)/fuzz/%: $(B)/obj/tests/fuzz/%.o $(FUZZ_MAIN) $(call lib,cached) $(call libs_of,cmd)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $(FUZZ_LINK) -o $@ $^ $(PKG_LIBS)
$(B)/bench/%: $(B)/obj/bench/%.o $(call lib,cached) $(call libs_of,cmd)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ $(PKG_LIBS) -lm

-include $(shell find $(B)/obj -name '*.d' 2>/dev/null)

# --- what people call ---

# Debian 12 and Ubuntu 24.04 have them all under these names; the sanitizers' runtime of clang is found by its default version
DEPS_BUILD := build-essential pkg-config libevent-dev libhiredis-dev libcurl4-openssl-dev libssl-dev libxxhash-dev \
	libfuse3-dev fuse3 libjansson-dev liblz4-dev libzstd-dev zlib1g-dev
DEPS_DEMO := redis-server radosgw ceph-mon ceph-osd ceph-common curl python3 python3-redis procps
DEPS_CHECK := openssl libcmocka-dev clang clang-tidy clang-format cppcheck python3-pytest python3-pytest-timeout python3-pytest-xdist python3-boto3 \
	python3-venv iproute2 attr acl
DEPS_POSIX := libacl1-dev
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

deps:            ## install what building, the demo and the checks need (Debian 12, Ubuntu 24.04)
	@$(SUDO) sh tests/deps.sh $(DEPS_BUILD) $(DEPS_DEMO) $(DEPS_CHECK) $(DEPS_POSIX)

demo:            ## the main job on real data: three daemons, two mounts, one killed; KEEP=1 leaves it up, DATA=DIR copies yours
	@$(SUDO) sh tests/deps.sh $(DEPS_BUILD) $(DEPS_DEMO)
	@echo building
	@$(MAKE) -s -j$$(nproc) MODE=release all
	@$(PYTHON) tests/demo.py --bin $(O)/release

check:           ## everything that must hold: units (debug, asan, tsan), fuzz corpus, lint, analysis, integration
	@$(SUDO) sh tests/deps.sh $(DEPS_BUILD) $(DEPS_DEMO) $(DEPS_CHECK)
	@$(PYTHON) tests/check.py --build $(O)

check-posix:     ## pjdfstest and fsx on a fresh mount; they are built by cargo (1.85 or newer), skipped without. OPS= SEED=
	@$(SUDO) sh tests/deps.sh $(DEPS_BUILD) $(DEPS_DEMO) $(DEPS_POSIX)
	@$(MAKE) -s -j$$(nproc) MODE=release all
	@STOKE_BIN=$(abspath $(O)/release) $(PYTHON) tests/posix.py $(ARGS)

unit: $(UNITS)   ## build and run the unit tests of MODE
	$(PYTHON) tests/check.py --build $(O) --only units --mode $(MODE)

units-built: $(UNITS)
benches-built: $(BENCHES)

fuzz-replay: $(FUZZERS) ## run the fuzzers over their corpus (MODE=asan)
	$(PYTHON) tests/check.py --build $(O) --only fuzz --mode $(MODE)
fuzzers-built: $(FUZZERS)

fuzz:            ## fuzz each parser for TIME seconds (default 60) with libFuzzer
	$(MAKE) MODE=fuzz FUZZ_LINK=-fsanitize=fuzzer fuzzers-built
	for f in tests/fuzz/fuzz_*.c; do n=$$(basename $$f .c); mkdir -p $(O)/fuzz/found/$$n; \
		$(O)/fuzz/fuzz/$$n -max_total_time=$(or $(TIME),60) -artifact_prefix=$(O)/fuzz/ \
		$(O)/fuzz/found/$$n tests/fuzz/corpus/$${n#fuzz_} || exit 1; done

integration: all ## the real programs with a real Redis, a real S3 and the real JuiceFS
	STOKE_BIN=$(abspath $(B)) $(PYTHON) -m pytest -q tests/integration $(ARGS)

chaos: all       ## random faults under five daemons and three mounts, every byte compared; MINUTES=10 SEED= ARGS=
	STOKE_BIN=$(abspath $(B)) $(PYTHON) tests/chaos.py $(ARGS)

lint:            ## include arrows, library walls, format, lengths, each header alone
	$(PYTHON) tests/lint.py

analyze: export ANALYZE_FLAGS = $(CPPFLAGS)
analyze:         ## clang -Wthread-safety, clang --analyze, clang-tidy, cppcheck
	sh tests/analyze.sh

bench:           ## what the README's numbers come from
	@$(MAKE) -s -j$$(nproc) MODE=release all benches-built
	@$(PYTHON) bench/run.py --bin $(O)/release $(ARGS)

man: all         ## man pages from --help, into the build folder
	$(PYTHON) docs/man.py $(B) $(B)/man

install: man     ## into PREFIX (default /usr/local); build with MODE=release
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/man/man8
	install -m 755 $(PROGRAMS) $(DESTDIR)$(PREFIX)/bin
	install -m 644 $(B)/man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 644 $(B)/man/*.8 $(DESTDIR)$(PREFIX)/share/man/man8

clean:           ## remove what was built
	rm -rf $(O)

help:            ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## */\1|/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "  %-12s %s\n", $$1, $$2}'
	@echo "  MODE=debug|release|asan|tsan|fuzz|cov   O=build"
