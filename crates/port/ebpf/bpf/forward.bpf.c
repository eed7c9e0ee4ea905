// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Two programs beside one socket: the first sends arrivals on, the second copies departures.
 *
 * The first forwards the stream of a proxy where datagrams enter the host (TC, ingress), by the rules of
 * evenfall_core::forward. The first copy of a number leaves to every member of its group with
 * another head and other addresses. Every datagram then goes on to the socket as it came. A mark
 * tells the process which datagrams were sent on.
 *
 * A datagram that is not plainly a match goes up unmarked, and the process decides. That is so of
 * fragments, IP options, VLANs, buffers of several datagrams (gso_segs > 1), and datagrams without
 * a checksum.
 *
 * The host drops a packet for another hardware address and a packet with a wrong checksum of IP,
 * and so neither is sent on. The checksum of UDP covers all bytes and is not looked at: the sum of
 * a copy is wrong where that of the arrival was, so that each child drops its copy.
 *
 * A buffer of several datagrams has one head and many numbers, so that a program which looks at its
 * first bytes alone would send unseen numbers on unmarked.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "tables.h"

/* The next program of the hook decides (TCX_NEXT; TC_ACT_UNSPEC means the same for clsact). */
#define NEXT (-1)
#define DROP 2
#define UDP 17
#define DONT_FRAGMENT 0x4000
#define FRAGMENT 0x3fff
#define TIME_TO_LIVE 64

/* Two bytes in front align the header of IP. */
struct headers {
	__u16 padding;
	struct ethhdr eth;
	struct iphdr ip;
	struct udphdr udp;
};

/* Offsets in a packet. */
#define PAYLOAD (sizeof(struct headers) - sizeof(__u16))
#define UDP_CHECK (__builtin_offsetof(struct headers, udp.check) - sizeof(__u16))

/*
 * What the program knows about one packet. It is in a map of each CPU: the stack has 512 bytes. The
 * functions that take it are global, so that the verifier checks each once and not at every call.
 */
struct scratch {
	__u64 head[HEAD_WORDS];
	__u64 out[HEAD_WORDS];
	__u64 tail[TAIL_BYTES / 8];
	/* The headers that came, those that the buffer has now, and those of the next copy. */
	struct headers came;
	struct headers now;
	struct headers next;
	/* What the sum of UDP must still follow in the head. */
	__u32 sum;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct setup);
} setups SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct clock);
} clocks SEC(".maps");

/*
 * A hash replaces a value as a whole: the program sees the old value or the new one. An array would
 * be overwritten under the program.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TABLES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct table);
} tables SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GROUPS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct group);
} groups SEC(".maps");

/* A number plus one, in the slot of the number. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TABLES * WINDOW);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
} numbers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TABLES);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct window);
} windows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GROUPS * CHILDREN);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct copies);
} copied SEC(".maps");

/* Datagrams of a group that the second program has copied. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GROUPS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
} turns SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

/* What the second program knows about one packet. */
struct departure {
	/* The headers of the copy that was written last. */
	struct headers headers;
	/* The sums of the datagram less its addresses and ports, which differ from copy to copy. */
	__u64 ip;
	__u64 udp;
	/* Whether the field has the sum of the pseudo header alone, which a card completes. */
	__u32 is_partial;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct departure);
} departures SEC(".maps");

#define ROTATE(x, by) ((x) << (by) | (x) >> (64 - (by)))
#define ROUND                                                                                      \
	do {                                                                                       \
		a += b; b = ROTATE(b, 13); b ^= a; a = ROTATE(a, 32);                              \
		c += d; d = ROTATE(d, 16); d ^= c;                                                 \
		a += d; d = ROTATE(d, 21); d ^= a;                                                 \
		c += b; b = ROTATE(b, 17); b ^= c; c = ROTATE(c, 32);                              \
	} while (0)

/* SipHash-2-4 over the first words of a head and the words of the tail. */
__attribute__((noinline)) __u64 code_of(struct scratch *s, struct table *table, int leaving)
{
	if (!s || !table)
		return 0;
	__u64 a = table->key[0] ^ 0x736f6d6570736575ULL, b = table->key[1] ^ 0x646f72616e646f6dULL;
	__u64 c = table->key[0] ^ 0x6c7967656e657261ULL, d = table->key[1] ^ 0x7465646279746573ULL;
	__u32 words = table->code_words, tail = table->code_tail_bytes / 8;
	for (__u32 i = 0; i < HEAD_WORDS && i < words; i++) {
		__u64 word = leaving ? s->out[i] : s->head[i];
		d ^= word;
		ROUND;
		ROUND;
		a ^= word;
	}
	for (__u32 i = 0; i < TAIL_BYTES / 8 && i < tail; i++) {
		__u64 word = s->tail[i];
		d ^= word;
		ROUND;
		ROUND;
		a ^= word;
	}
	__u64 length = (__u64)(words + tail) * 8 << 56;
	d ^= length;
	ROUND;
	ROUND;
	a ^= length;
	c ^= 0xff;
	ROUND;
	ROUND;
	ROUND;
	ROUND;
	return a ^ b ^ c ^ d;
}

static __always_inline __u64 word_at(const __u64 *head, __u32 at)
{
	__u64 word = 0;
	if (at <= HEAD_BYTES - 8)
		__builtin_memcpy(&word, (const __u8 *)head + at, 8);
	return word;
}

static __always_inline void put_word(__u64 *head, __u32 at, __u64 word)
{
	if (at <= HEAD_BYTES - 8)
		__builtin_memcpy((__u8 *)head + at, &word, 8);
}

__attribute__((noinline)) int matches(const struct table *table, const struct scratch *s, __u32 length)
{
	if (!table || !s)
		return 0;
	__u32 known = 0;
	__u64 differs = 0;
	for (__u32 i = 0; i < SOURCES; i++)
		known |= i < table->source_count && table->sources[i].address == s->came.ip.saddr &&
			 table->sources[i].port == s->came.udp.source;
	if (!known || length < table->head_bytes)
		return 0;
	for (__u32 i = 0; i < HEAD_WORDS; i++)
		differs |= (s->head[i] ^ table->match[i]) & table->match_mask[i];
	return !differs;
}

/* The group of a datagram; GROUPS for none. */
__attribute__((noinline)) __u32 group_of(const struct table *table, const struct scratch *s)
{
	if (!table || !s)
		return GROUPS;
	for (__u32 i = 0; i < ROUTES && i < table->route_count; i++) {
		const struct route *route = &table->routes[i];
		if (route->at == NOWHERE)
			return route->group;
		__u32 number = 0;
		if (route->at <= HEAD_BYTES - 4)
			__builtin_memcpy(&number, (const __u8 *)s->head + route->at, 4);
		if (number >= route->first && number <= route->last)
			return route->group;
	}
	return GROUPS;
}

static __always_inline __u16 ip_sum(const struct iphdr *ip)
{
	const __u16 *words = (const __u16 *)ip;
	__u32 sum = 0;
	for (__u32 i = 0; i < sizeof(*ip) / 2; i++)
		sum += words[i];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* Advances the window to a number, unless another CPU has taken it further. */
static __always_inline void advance(struct window *window, __u64 next)
{
	for (int i = 0; i < 8; i++) {
		__u64 now = *(volatile __u64 *)&window->next;
		if (now >= next || __sync_val_compare_and_swap(&window->next, now, next) == now)
			return;
	}
}

/*
 * Writes the headers of the next copy. The sum of UDP follows them: the helper knows whether the
 * buffer has a whole sum or only that of the pseudo header, which a card completes.
 */
static __always_inline int write_headers(struct __sk_buff *skb, struct scratch *s)
{
	const struct headers *now = &s->now, *next = &s->next;
	__be32 old[2] = { now->ip.saddr, now->ip.daddr }, new[2] = { next->ip.saddr, next->ip.daddr };
	__be32 old_ports = (__be32)now->udp.source << 16 | now->udp.dest;
	__be32 new_ports = (__be32)next->udp.source << 16 | next->udp.dest;
	__s64 addresses = bpf_csum_diff(old, sizeof(old), new, sizeof(new), 0);
	__s64 rest = bpf_csum_diff(&old_ports, 4, &new_ports, 4, s->sum);
	__u64 flags = BPF_F_MARK_MANGLED_0;
	s->sum = 0;
	s->now = s->next;
	return bpf_skb_store_bytes(skb, 0, &next->eth, UDP_CHECK, 0) |
	       bpf_l4_csum_replace(skb, UDP_CHECK, 0, addresses, flags | BPF_F_PSEUDO_HDR) |
	       bpf_l4_csum_replace(skb, UDP_CHECK, 0, rest, flags);
}

/* Sends a copy to a child. Returns whether it left. */
__attribute__((noinline)) int send_copy(struct __sk_buff *skb, struct scratch *s,
					struct child *child)
{
	if (!s || !child)
		return 0;
	struct headers *next = &s->next;
	__builtin_memcpy(next->eth.h_dest, child->to_mac, 6);
	__builtin_memcpy(next->eth.h_source, child->from_mac, 6);
	next->ip.saddr = child->from;
	next->ip.daddr = child->to;
	next->ip.check = 0;
	next->ip.check = ip_sum(&next->ip);
	next->udp.source = child->from_port;
	next->udp.dest = child->to_port;
	return !write_headers(skb, s) && !bpf_clone_redirect(skb, child->interface, 0);
}

static __always_inline void count_copy(__u32 group, __u32 child, int left)
{
	__u32 at = group * CHILDREN + child;
	struct copies *copies = bpf_map_lookup_elem(&copied, &at);
	if (copies)
		__sync_fetch_and_add(left ? &copies->sent : &copies->failed, 1);
}

/* Writes a head over another head, in the buffer and for the sum. Both have the same length. */
static __always_inline int write_head(struct __sk_buff *skb, struct scratch *s, __u64 *old, __u64 *new,
				      __u32 bytes)
{
	/* Sums go over words of four bytes. Bytes behind the head are the same in both. */
	__u32 summed = (bytes + 3) & ~3U;
	if (bytes < 1 || bytes > HEAD_BYTES || summed > HEAD_BYTES)
		return 1;
	s->sum = bpf_csum_diff((__be32 *)old, summed, (__be32 *)new, summed, 0);
	return bpf_skb_store_bytes(skb, PAYLOAD, new, bytes, 0) != 0;
}

/* Sends a copy to each child, and leaves the buffer as it came. Returns whether a copy left. */
static __always_inline int fan_out(struct __sk_buff *skb, struct scratch *s, const struct table *table,
				   struct group *group, __u32 name)
{
	int sent = 0;
	s->now = s->came;
	s->next = s->came;
	s->next.ip.tos = table->tos;
	s->next.ip.ttl = TIME_TO_LIVE;
	s->next.ip.id = 0;
	s->next.ip.frag_off = bpf_htons(DONT_FRAGMENT);
	if (write_head(skb, s, s->head, s->out, table->head_bytes))
		return 0;
	for (__u32 i = 0; i < CHILDREN && i < group->count; i++) {
		int left = send_copy(skb, s, &group->children[i]);
		count_copy(name, i, left);
		sent |= left;
	}
	s->next = s->came;
	write_head(skb, s, s->out, s->head, table->head_bytes);
	write_headers(skb, s);
	return sent;
}

/* Sends a datagram on by a table whose conditions it fulfils. Returns whether it was sent on. */
__attribute__((noinline)) int forward(struct __sk_buff *skb, struct scratch *s, struct table *table,
				      __u32 number_of_table, __u32 length)
{
	if (!s || !table)
		return 0;
	__u32 tail = table->code_tail_bytes;
	if (table->code_at != NOWHERE) {
		if (length < table->head_bytes + tail)
			return 0;
		if (tail >= 1 && tail <= TAIL_BYTES &&
		    bpf_skb_load_bytes(skb, PAYLOAD + length - tail, s->tail, tail))
			return 0;
		if (code_of(s, table, 0) != word_at(s->head, table->code_at))
			return 0;
	}
	struct window *window = bpf_map_lookup_elem(&windows, &number_of_table);
	__u64 number = word_at(s->head, table->window_at), frames = table->window_frames;
	if (!window || !frames)
		return 0;
	__u64 next = *(volatile __u64 *)&window->next;
	/* The largest number has no successor. */
	if (number + 1 == 0 || (next > number && next - number > frames)) {
		__sync_fetch_and_add(&window->behind, 1);
		return 0;
	}
	__u32 at = number_of_table * WINDOW + (__u32)(number % frames);
	__u64 *slot = bpf_map_lookup_elem(&numbers, &at);
	if (!slot)
		return 0;
	__u64 before = *(volatile __u64 *)slot;
	if (before == number + 1) {
		__sync_fetch_and_add(&window->duplicates, 1);
		return 0;
	}
	__u32 name = group_of(table, s);
	struct group *group = bpf_map_lookup_elem(&groups, &name);
	if (!group || name >= GROUPS || length + PAYLOAD - sizeof(struct ethhdr) > group->mtu) {
		__sync_fetch_and_add(&window->refused, 1);
		return 0;
	}
	/* A larger number in the slot came on another CPU, and moved the window past this number. */
	if (before > number + 1 || __sync_val_compare_and_swap(slot, before, number + 1) != before) {
		__sync_fetch_and_add(&window->duplicates, 1);
		return 0;
	}
	advance(window, number + 1);
	for (__u32 i = 0; i < HEAD_WORDS; i++)
		s->out[i] = (s->head[i] & ~table->patch_mask[i]) | table->patch[i];
	if (table->sync_at != NOWHERE) {
		__u32 zero = 0;
		struct clock *clock = bpf_map_lookup_elem(&clocks, &zero);
		if (!clock)
			return 0;
		put_word(s->out, table->sync_at,
			 clock->disproved ? 0 : bpf_ktime_get_ns() + clock->offset);
	}
	if (table->code_at != NOWHERE)
		put_word(s->out, table->code_at, code_of(s, table, 1));
	if (!fan_out(skb, s, table, group, name)) {
		__sync_val_compare_and_swap(slot, number + 1, 0);
		__sync_fetch_and_add(&window->refused, 1);
		return 0;
	}
	__sync_fetch_and_add(&window->forwarded, 1);
	return 1;
}

SEC("classifier")
int evenfall_forward(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct headers h = {};
	if (skb->protocol != bpf_htons(ETH_P_IP) || skb->vlan_present || skb->gso_segs > 1 ||
	    skb->pkt_type != PACKET_HOST)
		return NEXT;
	if (bpf_skb_load_bytes(skb, 0, &h.eth, PAYLOAD))
		return NEXT;
	struct setup *setup = bpf_map_lookup_elem(&setups, &zero);
	if (!setup || h.ip.daddr != setup->address || h.udp.dest != setup->port)
		return NEXT;
	if (h.ip.version != 4 || h.ip.ihl != 5 || h.ip.protocol != UDP || !h.udp.check ||
	    h.ip.frag_off & bpf_htons(FRAGMENT) || ip_sum(&h.ip))
		return NEXT;
	__u32 datagram = bpf_ntohs(h.udp.len), whole = bpf_ntohs(h.ip.tot_len);
	if (datagram <= sizeof(h.udp) || whole != datagram + sizeof(h.ip) ||
	    skb->len != whole + sizeof(h.eth))
		return NEXT;
	struct scratch *s = bpf_map_lookup_elem(&scratches, &zero);
	__u32 length = datagram - sizeof(h.udp), head = length;
	if (head > HEAD_BYTES)
		head = HEAD_BYTES;
	if (!s || head < 1 || bpf_skb_load_bytes(skb, PAYLOAD, s->head, head))
		return NEXT;
	s->came = h;
	for (__u32 i = 0; i < TABLES; i++) {
		__u32 number = i;
		struct table *table = bpf_map_lookup_elem(&tables, &number);
		if (!table || !matches(table, s, length))
			continue;
		if (group_of(table, s) >= GROUPS)
			continue;
		if (forward(skb, s, table, number, length))
			skb->mark = setup->mark;
		return NEXT;
	}
	return NEXT;
}

/* A sum of words of the Internet checksum, folded to sixteen bits. */
static __always_inline __u16 fold(__u64 sum)
{
	for (int i = 0; i < 2; i++)
		sum = (sum & 0xffffffff) + (sum >> 32);
	for (int i = 0; i < 3; i++)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

static __always_inline __u64 without(__u32 word)
{
	return (__u32)~word;
}

static __always_inline __u32 ports(__be16 from, __be16 to)
{
	return (__u32)from << 16 | to;
}

/*
 * A child by its place. The compiler may know that the place is in range, and the verifier must see
 * it too.
 */
static __always_inline struct child *child_at(struct group *group, __u32 at)
{
	asm volatile("" : "+r"(at));
	return &group->children[at & (CHILDREN - 1)];
}

/*
 * No field of the buffer says whether its sum is whole, but the helper knows: it adds to the sum of
 * a pseudo header, and subtracts from a whole sum. A buffer that will be cut into segments has the
 * sum of the pseudo header, whatever the helper takes it for.
 */
__attribute__((noinline)) int start_sums(struct __sk_buff *skb, struct departure *d)
{
	if (!d)
		return 1;
	const struct headers *h = &d->headers;
	struct headers bare = *h;
	__be16 probed = 0;
	bare.ip.check = 0;
	bare.ip.saddr = bare.ip.daddr = 0;
	d->ip = (__u16)~ip_sum(&bare.ip);
	d->is_partial = skb->gso_segs > 1;
	if (!d->is_partial) {
		if (bpf_l4_csum_replace(skb, UDP_CHECK, 0, 1, BPF_F_PSEUDO_HDR) ||
		    bpf_skb_load_bytes(skb, UDP_CHECK, &probed, sizeof(probed)))
			return 1;
		d->is_partial = probed == fold((__u64)h->udp.check + 1);
	}
	__u64 addresses = without(h->ip.saddr) + without(h->ip.daddr);
	if (d->is_partial)
		d->udp = h->udp.check + addresses;
	else
		d->udp = (__u16)~h->udp.check + addresses +
			    without(ports(h->udp.source, h->udp.dest));
	return 0;
}

/*
 * Makes the buffer the copy of a child. Returns whether that failed. A global function, which the
 * verifier checks once and not for each of the children.
 */
__attribute__((noinline)) int write_copy(struct __sk_buff *skb, struct departure *d,
					 struct child *child)
{
	if (!d || !child)
		return 1;
	struct headers *h = &d->headers;
	__u64 addresses = (__u64)child->from + child->to;
	__builtin_memcpy(h->eth.h_dest, child->to_mac, 6);
	__builtin_memcpy(h->eth.h_source, child->from_mac, 6);
	h->ip.saddr = child->from;
	h->ip.daddr = child->to;
	h->ip.check = ~fold(d->ip + addresses);
	h->udp.source = child->from_port;
	h->udp.dest = child->to_port;
	if (d->is_partial) {
		h->udp.check = fold(d->udp + addresses);
	} else {
		__u16 sum = ~fold(d->udp + addresses + ports(child->from_port, child->to_port));
		/* Zero means that there is no sum. */
		h->udp.check = sum ? sum : 0xffff;
	}
	return bpf_skb_store_bytes(skb, 0, &h->eth, PAYLOAD, 0) != 0;
}

/* Sends a clone to the child of a group at a place, and counts it. */
__attribute__((noinline)) int clone_to(struct __sk_buff *skb, struct departure *d,
				       struct group *group, __u32 name, __u32 at)
{
	if (!d || !group)
		return 0;
	struct child *child = child_at(group, at);
	int left = !write_copy(skb, d, child) && !bpf_clone_redirect(skb, child->interface, 0);
	count_copy(name, at, left);
	return left;
}

/*
 * Copies a datagram that the process sent to one child of a group (TC, egress): clones leave to all
 * children but one, and the buffer itself becomes the copy of the last. The first child changes from
 * datagram to datagram, so that no child is always served last.
 *
 * The mark of the datagram names the group. Copies have no mark, so that they pass this program when
 * they leave, and the programs of others take them for datagrams of the process.
 */
SEC("classifier")
int evenfall_copy(struct __sk_buff *skb)
{
	__u32 zero = 0, mark = skb->mark, name = mark & (GROUPS - 1);
	if (!mark)
		return NEXT;
	struct setup *setup = bpf_map_lookup_elem(&setups, &zero);
	if (!setup || (mark & ~(GROUPS - 1)) != setup->copy_mark)
		return NEXT;
	skb->mark = 0;
	struct departure *d = bpf_map_lookup_elem(&departures, &zero);
	if (!d)
		return NEXT;
	struct headers h = {};
	if (skb->protocol != bpf_htons(ETH_P_IP) || skb->vlan_present ||
	    bpf_skb_load_bytes(skb, 0, &h.eth, PAYLOAD))
		return NEXT;
	if (h.ip.version != 4 || h.ip.ihl != 5 || h.ip.protocol != UDP || !h.udp.check ||
	    h.ip.frag_off & bpf_htons(FRAGMENT) || h.ip.saddr != setup->address ||
	    h.udp.source != setup->port)
		return NEXT;
	struct group *group = bpf_map_lookup_elem(&groups, &name);
	__u64 *turn = bpf_map_lookup_elem(&turns, &name);
	if (!group || !turn)
		return NEXT;
	__u32 count = group->count;
	d->headers = h;
	if (count < 1 || count > CHILDREN ||
	    (skb->gso_segs <= 1 && bpf_ntohs(h.ip.tot_len) > group->mtu) ||
	    start_sums(skb, d))
		return NEXT;
	__u32 at = __sync_fetch_and_add(turn, 1) % count;
	for (__u32 i = 1; i < CHILDREN && i < count; i++) {
		clone_to(skb, d, group, name, at);
		at = at + 1 < count ? at + 1 : 0;
	}
	struct child *last = child_at(group, at);
	int left = !write_copy(skb, d, last);
	count_copy(name, at, left);
	if (!left)
		return DROP;
	return last->interface == skb->ifindex ? NEXT : bpf_redirect(last->interface, 0);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
