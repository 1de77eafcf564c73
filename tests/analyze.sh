#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Static analysis of the programs' sources: four tools, each said clean or with its findings; exit 1 when there are any.
# ANALYZE_FLAGS comes from the Makefile: the compiler's -I, -isystem and -D, quoted for the shell.
#
# Left out, since they do not see what this code does:
#   unix.Malloc, memleak          do not know the cleanup attribute: what it frees counts as lost
#   bugprone-sizeof-expression    holds sizeof of an array of pointers for a mistake
#   bugprone-not-null-terminated-result, -signal-handler, -branch-clone, -narrowing-conversions and the like: matters of
#                                 taste here, or what -Wall -Wextra -Wconversion says better
set -eu
cd "$(dirname "$0")/.."
files=$(find proto common cached client -name '*.c' | sort)
jobs=$(nproc)
out=$(mktemp)
trap 'rm -f "$out"' EXIT
fail=0

# name, pattern of the lines to be shown, command…: the command is run for the files, eight at a time
run() {
	name=$1 show=$2
	shift 2
	if printf '%s\n' $files | xargs -P "$jobs" -n 8 "$@" >"$out" 2>&1; then
		echo "analyze: $name: clean"
	else
		grep -E "$show" "$out" || cat "$out"
		echo "analyze: $name: findings"
		fail=1
	fi
}

# clang-tidy wants the compiler's flags behind the files
tidy='checks=$1 flags=$2; shift 2; eval exec clang-tidy --quiet "--checks=\$checks" "--warnings-as-errors=*" "\"\$@\"" -- -std=gnu17 "$flags"'
checks="-*,bugprone-*,-bugprone-easily-swappable-parameters,-bugprone-reserved-identifier"
checks="$checks,-bugprone-assignment-in-if-condition,-bugprone-narrowing-conversions"
checks="$checks,-bugprone-implicit-widening-of-multiplication-result,-bugprone-branch-clone"
checks="$checks,-bugprone-macro-parentheses,-bugprone-multi-level-implicit-pointer-conversion"
checks="$checks,-bugprone-signal-handler,-bugprone-sizeof-expression,-bugprone-not-null-terminated-result"

eval "set -- $ANALYZE_FLAGS"
run thread-safety '' clang -std=gnu17 "$@" -fsyntax-only -Wall -Wextra -Wthread-safety -Werror
run clang-analyzer '' clang -std=gnu17 "$@" --analyze -Xclang -analyzer-werror \
	-Xclang -analyzer-disable-checker=unix.Malloc --analyzer-output text
run clang-tidy 'error:|warning:' sh -c "$tidy" _ "$checks" "$ANALYZE_FLAGS"
# shellcheck disable=SC2086
if cppcheck --quiet --std=c11 -I. --inline-suppr --enable=warning,portability --error-exitcode=1 -j "$jobs" \
	--suppress=missingIncludeSystem --suppress=nullPointerArithmeticRedundantCheck --suppress=memleak $files; then
	echo "analyze: cppcheck: clean"
else
	echo "analyze: cppcheck: findings"
	fail=1
fi
exit $fail
