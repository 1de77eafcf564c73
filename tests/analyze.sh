#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Static analysis of the programs' sources. CPPFLAGS comes from the Makefile. Exit 1 at the first finding of a tool.
set -eu
cd "$(dirname "$0")/.."
files=$(git ls-files 'proto/*.c' 'common/**/*.c' 'common/*.c' 'cached/*.c' 'client/*.c' 'client/**/*.c' | sort -u)
jobs=$(nproc)
fail=0
run() { # name, command…: the command is run for every file
	name=$1; shift
	if printf '%s\n' $files | xargs -P "$jobs" -n 4 "$@" >"${TMPDIR:-/tmp}/stoke-analyze.$$" 2>&1; then
		echo "analyze: $name: clean"
	else
		cat "${TMPDIR:-/tmp}/stoke-analyze.$$"; echo "analyze: $name: findings"; fail=1
	fi
	rm -f "${TMPDIR:-/tmp}/stoke-analyze.$$"
}
eval "set -- $CPPFLAGS"
run thread-safety clang -std=gnu17 "$@" -fsyntax-only -Wall -Wextra -Wthread-safety -Werror
run clang-analyzer clang -std=gnu17 "$@" --analyze -Xclang -analyzer-werror --analyzer-output text -o /dev/null
if printf '%s\n' $files | xargs -P "$jobs" -n 8 sh -c 'for f; do :; done; exec clang-tidy --quiet \
	--checks="-*,bugprone-*,-bugprone-easily-swappable-parameters,-bugprone-reserved-identifier,-bugprone-assignment-in-if-condition,-bugprone-narrowing-conversions,-bugprone-implicit-widening-of-multiplication-result,-bugprone-branch-clone,-bugprone-macro-parentheses,-bugprone-multi-level-implicit-pointer-conversion,-bugprone-signal-handler" \
	--warnings-as-errors="*" "$@" -- -std=gnu17 $CPPFLAGS' _ >"${TMPDIR:-/tmp}/stoke-tidy.$$" 2>&1; then
	echo "analyze: clang-tidy: clean"
else
	grep -E 'error|warning' "${TMPDIR:-/tmp}/stoke-tidy.$$"; echo "analyze: clang-tidy: findings"; fail=1
fi
rm -f "${TMPDIR:-/tmp}/stoke-tidy.$$"
# shellcheck disable=SC2086
if cppcheck --quiet --std=c11 -I. --inline-suppr --enable=warning,portability --error-exitcode=1 -j "$jobs" \
	--suppress=missingIncludeSystem --suppress=nullPointerArithmeticRedundantCheck $files; then
	echo "analyze: cppcheck: clean"
else
	echo "analyze: cppcheck: findings"; fail=1
fi
exit $fail
