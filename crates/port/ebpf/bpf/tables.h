/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * What the program and the process share, in maps. src/layout.rs has the same structures for the
 * process, and a test there compares the sizes.
 */
#ifndef EVENFALL_TABLES_H
#define EVENFALL_TABLES_H

#include <linux/types.h>

/* The first bytes of a datagram that rules may name, in words of eight bytes. */
#define HEAD_WORDS 16
#define HEAD_BYTES (HEAD_WORDS * 8)
/* The bytes at the end of a datagram that a code may cover. */
#define TAIL_BYTES 16
#define TABLES 4
#define SOURCES 16
#define ROUTES 4
#define GROUPS 64
#define CHILDREN 32
/* Slots of one window. A power of two, so that slots of two tables never touch. */
#define WINDOW 65536
/* An offset that names nothing. */
#define NOWHERE 0xffff

/*
 * The address of the port, how it marks what it has sent on, and by which mark its process asks for
 * copies. The lowest bits of the last mark are those of the group.
 */
struct setup {
	__be32 address;
	__be16 port;
	__u16 padding;
	__u32 mark;
	__u32 copy_mark;
};

/* The synchronised clock: what is added to the local clock, unless the clock is disproved. */
struct clock {
	__u64 offset;
	__u64 disproved;
};

struct source {
	__be32 address;
	__be16 port;
	__u16 padding;
};

/* The first route is taken whose number of four bytes lies within two bounds. */
struct route {
	__u32 at;
	__u32 first;
	__u32 last;
	__u32 group;
};

struct table {
	/* A datagram matches when (head ^ match) & match_mask is zero. */
	__u64 match[HEAD_WORDS];
	__u64 match_mask[HEAD_WORDS];
	/* The head that leaves: the bits of the mask come from patch, the others from the arrival. */
	__u64 patch[HEAD_WORDS];
	__u64 patch_mask[HEAD_WORDS];
	__u64 key[2];
	struct source sources[SOURCES];
	struct route routes[ROUTES];
	__u32 source_count;
	__u32 route_count;
	__u32 head_bytes;
	__u32 window_at;
	__u32 window_frames;
	/* NOWHERE: no time is written. */
	__u32 sync_at;
	/* NOWHERE: there is no code. */
	__u32 code_at;
	__u32 code_words;
	__u32 code_tail_bytes;
	/* The field "type of service" of the copies. */
	__u32 tos;
};

/* What differs between the copies. */
struct child {
	__u32 interface;
	__be32 from;
	__be32 to;
	__be16 from_port;
	__be16 to_port;
	__u8 from_mac[6];
	__u8 to_mac[6];
	__u32 padding;
};

struct group {
	__u32 count;
	/* The longest packet, with the header of IP, that every link takes. */
	__u32 mtu;
	struct child children[CHILDREN];
};

/* What the program counts for a table, and the newest number plus one. */
struct window {
	__u64 next;
	__u64 forwarded;
	__u64 duplicates;
	__u64 behind;
	__u64 refused;
};

/* Copies to a member of a group. */
struct copies {
	__u64 sent;
	__u64 failed;
};

#endif
