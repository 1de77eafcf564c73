/* SPDX-License-Identifier: Apache-2.0 */
/* A text file of the tree as a string of the program: EMBED(member_lua, "common/block/member.lua");
 * then member_lua is a const char[]. The Makefile makes every object depend on the Lua files. */
#ifndef STOKE_COMMON_EMBED_H
#define STOKE_COMMON_EMBED_H

#define EMBED(name, path)                                                                          \
	extern const char name[] __attribute__((visibility("hidden")));                            \
	__asm__(".pushsection .rodata\n.globl " #name "\n.hidden " #name "\n" #name ":\n"          \
		".incbin \"" path "\"\n.byte 0\n.popsection\n")

#endif
