/* evenfall in a program of C or C++: messages of a feed, each at its deadline.
 *
 * Made out of apps/c/src by cbindgen; `cargo test -p evenfall-c --test header` compares it, and with
 * EVENFALL_WRITE_HEADER=1 writes it. docs/c.md has two programs. */

#ifndef EVENFALL_H
#define EVENFALL_H

#include <stddef.h>
#include <stdint.h>

/**
 * Units of `price` in a dollar.
 */
#define EVENFALL_PRICE_UNITS 10000

/**
 * What a call came to.
 */
typedef enum evenfall_status {
  /**
   * The call did what it says.
   */
  EVENFALL_OK = 0,
  /**
   * The stream has ended, or the handle is finished.
   */
  EVENFALL_ENDED = 1,
  /**
   * An argument is wrong: a null pointer, text that is no address, a size of another version.
   */
  EVENFALL_WRONG_ARGUMENT = 2,
  /**
   * A settings file, a node of it or a key is wrong.
   */
  EVENFALL_WRONG_SETTINGS = 3,
  /**
   * The run failed: a socket, a root that does not answer, another version on the wire.
   */
  EVENFALL_RUN_FAILED = 4,
  /**
   * The program took its messages too slowly, and the feed was cut off. Other receivers are not
   * affected.
   */
  EVENFALL_TOO_SLOW = 5,
  /**
   * Another thread is in a call with this handle, or the handle is of the process before a fork.
   */
  EVENFALL_BUSY = 6,
  /**
   * A fault of evenfall itself. The handle can only be freed.
   */
  EVENFALL_PANICKED = 7,
} evenfall_status;

/**
 * What an update is.
 */
typedef enum evenfall_update_kind {
  /**
   * A message at its deadline.
   */
  EVENFALL_MESSAGE = 0,
  /**
   * Messages that could not be repaired. The next message of the stream follows them.
   */
  EVENFALL_LOST = 1,
} evenfall_update_kind;

/**
 * A subscription to a feed. One thread at a time uses it.
 */
typedef struct evenfall_feed evenfall_feed;

/**
 * A publisher that outlives the root. Threads may publish at the same time.
 */
typedef struct evenfall_publisher evenfall_publisher;

/**
 * The root of a run. Threads may publish at the same time.
 */
typedef struct evenfall_root evenfall_root;

/**
 * How to subscribe. Set all of it to zero first, then `size` and what is wanted.
 *
 * Either `config` and `name` say which node of a settings file the program is, or `root`,
 * `address` and `id` do. All texts are read before the call returns.
 */
typedef struct evenfall_feed_options {
  /**
   * sizeof(evenfall_feed_options)
   */
  size_t size;
  /**
   * A settings file, or null.
   */
  const char *config;
  /**
   * The receiver of the settings file that this program is.
   */
  const char *name;
  /**
   * The root, as "HOST:PORT".
   */
  const char *root;
  /**
   * Where this receiver listens, as "HOST:PORT". Port 0 takes any free port.
   */
  const char *address;
  /**
   * The number of this receiver.
   */
  uint32_t id;
  /**
   * Trees of the run; 0 stands for 1.
   */
  uint32_t trees;
  /**
   * The file with the shared key, or null. Without a key nothing leaves loopback.
   */
  const char *key;
  /**
   * The file with the key of this receiver alone, or null, for a run with node keys.
   */
  const char *node_key;
  /**
   * The standbys of the root, as "HOST:PORT": none, two or four.
   */
  const char *const *standbys;
  /**
   * How many standbys.
   */
  size_t standby_count;
  /**
   * Only messages of these symbols, and those that concern no single symbol; null for all.
   */
  const char *const *symbols;
  /**
   * How many symbols.
   */
  size_t symbol_count;
  /**
   * Messages that may wait for the program before it is cut off; 0 stands for 1,048,576.
   */
  size_t waiting_messages;
  /**
   * Bytes of messages that may wait; 0 stands for 256 MiB.
   */
  size_t waiting_bytes;
  /**
   * Not 0: keep the content hash of the messages, for `evenfall_feed_hash`.
   */
  uint32_t hashed;
  /**
   * Not 0: read the messages, for `type`, `side`, `symbol`, `price`, `shares` and `order_ref` of
   * the updates. Without it, and for formats that are not read, these fields say nothing.
   */
  uint32_t decoded;
} evenfall_feed_options;

/**
 * An update of a feed. Updates come in order within each stream.
 */
typedef struct evenfall_update {
  /**
   * What the update is.
   */
  enum evenfall_update_kind kind;
  /**
   * The tree of the message.
   */
  uint32_t stream;
  /**
   * The number of the message within its stream, or of the first lost one; UINT64_MAX when it is
   * not known.
   */
  uint64_t number;
  /**
   * How many messages were lost; UINT64_MAX when it is not known; 0 of a message.
   */
  uint64_t lost;
  /**
   * When the message was to be released, in ns since 1970 by the run's clock; 0 for a message
   * without a deadline.
   */
  uint64_t deadline_ns;
  /**
   * When the message was released, read from the run's clock at that moment; 0 of lost messages.
   */
  uint64_t released_ns;
  /**
   * The message as the venue sent it; null of lost messages.
   */
  const uint8_t *bytes;
  /**
   * Bytes of the message.
   */
  size_t length;
  /**
   * The format of the message on the wire, such as 1 for ITCH; 0 for unknown bytes.
   */
  uint32_t format;
  /**
   * Type letter of ITCH, or digit of LOBSTER; 0 when the message has none.
   */
  char type;
  /**
   * 'B' buy, 'S' sell; 0 when the message has no side.
   */
  char side;
  /**
   * The security, without padding and with a nul; empty when the message concerns none. It is
   * named by the message, or by an earlier one with the same locate.
   */
  char symbol[9];
  /**
   * The price in units of 1/EVENFALL_PRICE_UNITS dollar; INT64_MIN when the message has none.
   */
  int64_t price;
  /**
   * Shares entered, executed or cancelled; UINT64_MAX when the message has none.
   */
  uint64_t shares;
  /**
   * The order; of a replacement, the old order; UINT64_MAX when the message has none.
   */
  uint64_t order_ref;
} evenfall_update;

/**
 * A receiver that the root waits for.
 */
typedef struct evenfall_receiver {
  /**
   * The number of the receiver.
   */
  uint32_t id;
  /**
   * Where it listens, as "HOST:PORT"; port 0 stands for any port.
   */
  const char *address;
} evenfall_receiver;

/**
 * How to start a root. Set all of it to zero first, then `size` and what is wanted.
 */
typedef struct evenfall_root_options {
  /**
   * sizeof(evenfall_root_options)
   */
  size_t size;
  /**
   * Where the root listens, as "HOST:PORT".
   */
  const char *address;
  /**
   * The number of the root.
   */
  uint32_t id;
  /**
   * Trees over which the keys of messages are spread; 0 stands for 1.
   */
  uint32_t trees;
  /**
   * The receivers that the root waits for before the first message leaves.
   */
  const struct evenfall_receiver *receivers;
  /**
   * How many receivers.
   */
  size_t receiver_count;
  /**
   * The file with the shared key, or null. Without a key nothing leaves loopback.
   */
  const char *key;
  /**
   * The file with the master key of the roots, or null, for a run with node keys.
   */
  const char *master_key;
} evenfall_root_options;

/**
 * How to start a publisher. Set all of it to zero first, then `size` and what is wanted.
 */
typedef struct evenfall_publisher_options {
  /**
   * sizeof(evenfall_publisher_options)
   */
  size_t size;
  /**
   * The root and its standbys, as "HOST:PORT": one, three or five, the root first.
   */
  const char *const *roots;
  /**
   * How many roots.
   */
  size_t root_count;
  /**
   * Where the publisher listens, as "HOST:PORT"; port 0 takes any free port.
   */
  const char *address;
  /**
   * The number of the publisher, which the settings of the roots name with role "author".
   */
  uint32_t id;
  /**
   * The file with the shared key, or null. Without a key nothing leaves loopback.
   */
  const char *key;
  /**
   * The file with the key of this publisher alone, or null, for a run with node keys.
   */
  const char *node_key;
} evenfall_publisher_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * What was wrong with the last call of this thread that failed, and what to do; empty before the
 * first. The text is valid until the next call of this thread that fails.
 */
const char *evenfall_last_error(void);

/**
 * Subscribes, and returns before the receiver has joined: what keeps it from joining is told by
 * `evenfall_feed_poll`. The program frees the feed by `evenfall_feed_free`.
 *
 * The caller promises:
 * The options and what they point to are as their fields say; `feed` may be written to.
 */
enum evenfall_status evenfall_subscribe(const struct evenfall_feed_options *options,
                                        struct evenfall_feed **feed);

/**
 * Takes the updates that wait, `most` of them at most (at least one), after a wait of `wait_ns` at
 * most; a negative time waits without end. EVENFALL_OK without an update says that the time is
 * over, EVENFALL_ENDED that the stream is. `updates` and the bytes of its messages are lent until
 * the next poll of this feed or its end.
 *
 * The caller promises:
 * The feed is one that is not freed; `updates` and `count` may be written to.
 */
enum evenfall_status evenfall_feed_poll(const struct evenfall_feed *feed,
                                        size_t most,
                                        int64_t wait_ns,
                                        const struct evenfall_update **updates,
                                        size_t *count);

/**
 * A descriptor that is readable while updates wait, and after the end, for `poll`, `epoll` and
 * loops over them. It belongs to the feed: the program only waits for it. It may be readable once
 * without an update.
 *
 * The caller promises:
 * The feed is one that is not freed; `descriptor` may be written to.
 */
enum evenfall_status evenfall_feed_descriptor(const struct evenfall_feed *feed, int *descriptor);

/**
 * The hash of the messages that were polled so far, as 64 hexadecimal digits and a nul: equal to
 * the feed's (`evenfall feed info`) when nothing is missing. Only with `hashed` in the options.
 *
 * The caller promises:
 * The feed is one that is not freed; 65 bytes may be written to `digits`.
 */
enum evenfall_status evenfall_feed_hash(const struct evenfall_feed *feed, char *digits);

/**
 * Leaves the run and frees the feed, which takes up to a second. Null is no feed, and nothing
 * happens.
 *
 * The caller promises:
 * The feed is null, or one that no thread uses now or later.
 */
void evenfall_feed_free(struct evenfall_feed *feed);

/**
 * Starts a root, and returns when the root listens. The program frees the root by
 * `evenfall_root_free`.
 *
 * The caller promises:
 * The options and what they point to are as their fields say; `root` may be written to.
 */
enum evenfall_status evenfall_root_start(const struct evenfall_root_options *options,
                                         struct evenfall_root **root);

/**
 * Publishes a message of 65,000 bytes at most, and waits while the queue is full. The bytes are
 * copied. Messages of one `key` keep their order.
 *
 * The caller promises:
 * The root is one that is not freed; `bytes` points to `length` bytes.
 */
enum evenfall_status evenfall_root_publish(const struct evenfall_root *root,
                                           const uint8_t *bytes,
                                           size_t length,
                                           uint32_t key);

/**
 * Ends the stream, and waits until every receiver has it. The root then takes no message more.
 * `messages` gets the number of messages that were sent; it may be null.
 *
 * The caller promises:
 * The root is one that is not freed; `messages` is null or may be written to.
 */
enum evenfall_status evenfall_root_finish(const struct evenfall_root *root, uint64_t *messages);

/**
 * Frees the root; ends the stream first when it is not finished. Null is no root, and nothing
 * happens.
 *
 * The caller promises:
 * The root is null, or one that no thread uses now or later.
 */
void evenfall_root_free(struct evenfall_root *root);

/**
 * Starts a publisher, and returns when the publisher listens. The program frees the publisher by
 * `evenfall_publisher_free`.
 *
 * The caller promises:
 * The options and what they point to are as their fields say; `publisher` may be written to.
 */
enum evenfall_status evenfall_publisher_start(const struct evenfall_publisher_options *options,
                                              struct evenfall_publisher **publisher);

/**
 * Messages of earlier processes under this id that are in the feed. Waits until a root takes
 * messages.
 *
 * The caller promises:
 * The publisher is one that is not freed; `messages` may be written to.
 */
enum evenfall_status evenfall_publisher_before(const struct evenfall_publisher *publisher,
                                               uint64_t *messages);

/**
 * Publishes a message of 65,000 bytes at most, and waits for its number in the feed, which it
 * keeps whichever root dies. The bytes are copied. `number` may be null: the call then returns as
 * soon as the message is queued, and waits only while the queue is full.
 *
 * The caller promises:
 * The publisher is one that is not freed; `bytes` points to `length` bytes; `number` is null or
 * may be written to.
 */
enum evenfall_status evenfall_publisher_publish(const struct evenfall_publisher *publisher,
                                                const uint8_t *bytes,
                                                size_t length,
                                                uint64_t *number);

/**
 * Tells the roots that no message follows, and returns when all messages have numbers.
 *
 * The caller promises:
 * The publisher is one that is not freed.
 */
enum evenfall_status evenfall_publisher_finish(const struct evenfall_publisher *publisher);

/**
 * Frees the publisher. When it is not finished, messages without a number may be in the feed or
 * not. Null is no publisher, and nothing happens.
 *
 * The caller promises:
 * The publisher is null, or one that no thread uses now or later.
 */
void evenfall_publisher_free(struct evenfall_publisher *publisher);

/**
 * The version of the library, such as "0.2.0".
 */
const char *evenfall_version(void);

/**
 * Subscribes, and returns before the receiver has joined: what keeps it from joining is told by
 * `evenfall_feed_poll`. The program frees the feed by `evenfall_feed_free`.
 *
 * The caller promises:
 * The options and what they point to are as their fields say; `feed` may be written to.
 */
enum evenfall_status evenfall_subscribe(const struct evenfall_feed_options *options,
                                        struct evenfall_feed **feed);

/**
 * Takes the updates that wait, `most` of them at most (at least one), after a wait of `wait_ns` at
 * most; a negative time waits without end. EVENFALL_OK without an update says that the time is
 * over, EVENFALL_ENDED that the stream is. `updates` and the bytes of its messages are lent until
 * the next poll of this feed or its end.
 *
 * The caller promises:
 * The feed is one that is not freed; `updates` and `count` may be written to.
 */
enum evenfall_status evenfall_feed_poll(const struct evenfall_feed *feed,
                                        size_t most,
                                        int64_t wait_ns,
                                        const struct evenfall_update **updates,
                                        size_t *count);

/**
 * A descriptor that is readable while updates wait, and after the end, for `poll`, `epoll` and
 * loops over them. It belongs to the feed: the program only waits for it. It may be readable once
 * without an update.
 *
 * The caller promises:
 * The feed is one that is not freed; `descriptor` may be written to.
 */
enum evenfall_status evenfall_feed_descriptor(const struct evenfall_feed *feed, int *descriptor);

/**
 * The hash of the messages that were polled so far, as 64 hexadecimal digits and a nul: equal to
 * the feed's (`evenfall feed info`) when nothing is missing. Only with `hashed` in the options.
 *
 * The caller promises:
 * The feed is one that is not freed; 65 bytes may be written to `digits`.
 */
enum evenfall_status evenfall_feed_hash(const struct evenfall_feed *feed, char *digits);

/**
 * Leaves the run and frees the feed, which takes up to a second. Null is no feed, and nothing
 * happens.
 *
 * The caller promises:
 * The feed is null, or one that no thread uses now or later.
 */
void evenfall_feed_free(struct evenfall_feed *feed);

/**
 * Starts a publisher, and returns when the publisher listens. The program frees the publisher by
 * `evenfall_publisher_free`.
 *
 * The caller promises:
 * The options and what they point to are as their fields say; `publisher` may be written to.
 */
enum evenfall_status evenfall_publisher_start(const struct evenfall_publisher_options *options,
                                              struct evenfall_publisher **publisher);

/**
 * Messages of earlier processes under this id that are in the feed. Waits until a root takes
 * messages.
 *
 * The caller promises:
 * The publisher is one that is not freed; `messages` may be written to.
 */
enum evenfall_status evenfall_publisher_before(const struct evenfall_publisher *publisher,
                                               uint64_t *messages);

/**
 * Publishes a message of 65,000 bytes at most, and waits for its number in the feed, which it
 * keeps whichever root dies. The bytes are copied. `number` may be null: the call then returns as
 * soon as the message is queued, and waits only while the queue is full.
 *
 * The caller promises:
 * The publisher is one that is not freed; `bytes` points to `length` bytes; `number` is null or
 * may be written to.
 */
enum evenfall_status evenfall_publisher_publish(const struct evenfall_publisher *publisher,
                                                const uint8_t *bytes,
                                                size_t length,
                                                uint64_t *number);

/**
 * Tells the roots that no message follows, and returns when all messages have numbers.
 *
 * The caller promises:
 * The publisher is one that is not freed.
 */
enum evenfall_status evenfall_publisher_finish(const struct evenfall_publisher *publisher);

/**
 * Frees the publisher. When it is not finished, messages without a number may be in the feed or
 * not. Null is no publisher, and nothing happens.
 *
 * The caller promises:
 * The publisher is null, or one that no thread uses now or later.
 */
void evenfall_publisher_free(struct evenfall_publisher *publisher);

/**
 * Starts a root, and returns when the root listens. The program frees the root by
 * `evenfall_root_free`.
 *
 * The caller promises:
 * The options and what they point to are as their fields say; `root` may be written to.
 */
enum evenfall_status evenfall_root_start(const struct evenfall_root_options *options,
                                         struct evenfall_root **root);

/**
 * Publishes a message of 65,000 bytes at most, and waits while the queue is full. The bytes are
 * copied. Messages of one `key` keep their order.
 *
 * The caller promises:
 * The root is one that is not freed; `bytes` points to `length` bytes.
 */
enum evenfall_status evenfall_root_publish(const struct evenfall_root *root,
                                           const uint8_t *bytes,
                                           size_t length,
                                           uint32_t key);

/**
 * Ends the stream, and waits until every receiver has it. The root then takes no message more.
 * `messages` gets the number of messages that were sent; it may be null.
 *
 * The caller promises:
 * The root is one that is not freed; `messages` is null or may be written to.
 */
enum evenfall_status evenfall_root_finish(const struct evenfall_root *root, uint64_t *messages);

/**
 * Frees the root; ends the stream first when it is not finished. Null is no root, and nothing
 * happens.
 *
 * The caller promises:
 * The root is null, or one that no thread uses now or later.
 */
void evenfall_root_free(struct evenfall_root *root);

/**
 * What was wrong with the last call of this thread that failed, and what to do; empty before the
 * first. The text is valid until the next call of this thread that fails.
 */
const char *evenfall_last_error(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* EVENFALL_H */
