/* Calls of ZooKeeper's C client (libzookeeper) against replicas of ordered keys. Ends at the first
 * answer that differs from ZooKeeper's.
 *
 *   client SERVER,SERVER,...
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zookeeper/zookeeper.h>

static int checks;
static volatile int deleted_seen;

static void expect(const char *what, int got, int want) {
    if (got != want) {
        fprintf(stderr, "c: %s: got %d (%s), not %d\n", what, got, zerror(got), want);
        exit(1);
    }
    checks++;
}

static void watch(zhandle_t *handle, int type, int state, const char *path, void *context) {
    (void)handle, (void)state, (void)path, (void)context;
    if (type == ZOO_DELETED_EVENT) deleted_seen = 1;
}

static zhandle_t *connect_to(const char *servers) {
    zhandle_t *handle = zookeeper_init(servers, watch, 6000, NULL, NULL, 0);
    for (int tries = 0; handle && zoo_state(handle) != ZOO_CONNECTED_STATE && tries < 200; tries++)
        usleep(100 * 1000);
    expect("a session", handle ? zoo_state(handle) : 0, ZOO_CONNECTED_STATE);
    return handle;
}

static volatile int authentication = 1;

static void authenticated(int result, const void *context) {
    (void)context;
    authentication = result;
}

static void add_digest(zhandle_t *handle, const char *secret) {
    authentication = 1;
    expect("send a digest", zoo_add_auth(handle, "digest", secret, strlen(secret), authenticated, 0), ZOK);
    for (int tries = 0; authentication == 1 && tries < 200; tries++) usleep(100 * 1000);
    expect("add a digest", authentication, ZOK);
}

int main(int count, char **arguments) {
    if (count != 2) return 2;
    zoo_set_debug_level(ZOO_LOG_LEVEL_ERROR);
    zhandle_t *owner = connect_to(arguments[1]), *other = connect_to(arguments[1]);
    char path[256], bytes[256];
    int length = sizeof bytes;
    struct Stat stat;

    add_digest(owner, "desk:secret");
    expect("create for the digest", zoo_create(owner, "/c", "a", 1, &ZOO_CREATOR_ALL_ACL, 0, path, sizeof path), ZOK);
    expect("read with the digest", zoo_get(owner, "/c", 0, bytes, &length, &stat), ZOK);
    expect("a byte is there", length, 1);
    length = sizeof bytes;
    expect("read without the digest", zoo_get(other, "/c", 0, bytes, &length, &stat), ZNOAUTH);
    add_digest(other, "desk:secret");
    length = sizeof bytes;
    expect("read after that", zoo_get(other, "/c", 0, bytes, &length, &stat), ZOK);

    struct ACL_vector *open = &ZOO_OPEN_ACL_UNSAFE;
    expect("create twice", zoo_create(owner, "/c", "a", 1, open, 0, path, sizeof path), ZNODEEXISTS);
    expect("a name that is no path", zoo_create(owner, "/c//x", "a", 1, open, 0, path, sizeof path), ZBADARGUMENTS);
    expect("create an ephemeral", zoo_create(other, "/c/e", "a", 1, open, ZOO_EPHEMERAL, path, sizeof path), ZOK);
    expect("a child of an ephemeral", zoo_create(owner, "/c/e/x", "a", 1, open, 0, path, sizeof path), ZNOCHILDRENFOREPHEMERALS);
    expect("a sequence", zoo_create(owner, "/c/s-", "a", 1, open, ZOO_SEQUENCE, path, sizeof path), ZOK);
    expect("its number", strcmp(path, "/c/s-0000000001"), 0);
    expect("another version", zoo_set(owner, "/c/s-0000000001", "b", 1, 7), ZBADVERSION);

    /* A transaction: all operations or none, and the one that failed is named. */
    zoo_op_t operations[2];
    zoo_op_result_t results[2];
    zoo_create_op_init(&operations[0], "/c/m", "a", 1, open, 0, path, sizeof path);
    zoo_delete_op_init(&operations[1], "/c/none", -1);
    expect("half a transaction", zoo_multi(owner, 2, operations, results), ZNONODE);
    expect("the operation that failed", results[1].err, ZNONODE);
    expect("its first half is undone", zoo_exists(owner, "/c/m", 0, &stat), ZNONODE);
    zoo_delete_op_init(&operations[1], "/c/s-0000000001", -1);
    expect("a transaction", zoo_multi(owner, 2, operations, results), ZOK);

    /* A watch, and the ephemeral of a session that ends. */
    expect("a watch", zoo_exists(owner, "/c/e", 1, &stat), ZOK);
    expect("end of a session", zookeeper_close(other), ZOK);
    for (int tries = 0; !deleted_seen && tries < 200; tries++) usleep(100 * 1000);
    expect("the event", deleted_seen, 1);
    struct String_vector children;
    expect("children", zoo_get_children(owner, "/c", 0, &children), ZOK);
    expect("their number", children.count, 1);
    deallocate_String_vector(&children);
    expect("end of a session", zookeeper_close(owner), ZOK);
    printf("c: %d checks passed\n", checks);
    return 0;
}
