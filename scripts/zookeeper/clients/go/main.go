// Calls of Go's client (github.com/go-zookeeper/zk) against replicas of ordered keys. Ends at the
// first answer that differs from ZooKeeper's.
//
//	go run . SERVER,SERVER,...
package main

import (
	"fmt"
	"log"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

// No call may take longer: a client that waits for an answer under another number waits for ever.
const callLimit = 20 * time.Second

var checks int

func expect(what string, good bool) {
	if !good {
		log.Fatalf("go: %s", what)
	}
	checks++
}

// within fails when a call has no answer in time.
func within(what string, call func() error, want error) {
	done := make(chan error, 1)
	go func() { done <- call() }()
	select {
	case err := <-done:
		expect(fmt.Sprintf("%s: got %v, not %v", what, err, want), err == want)
	case <-time.After(callLimit):
		log.Fatalf("go: %s: no answer in %v", what, callLimit)
	}
}

func connect(servers []string) *zk.Conn {
	conn, events, err := zk.Connect(servers, 6*time.Second, zk.WithLogInfo(false))
	expect(fmt.Sprintf("connect: %v", err), err == nil)
	for limit := time.After(callLimit); ; {
		select {
		case event := <-events:
			if event.State == zk.StateHasSession {
				return conn
			}
		case <-limit:
			log.Fatal("go: no session")
		}
	}
}

func main() {
	servers := strings.Split(os.Args[1], ",")
	owner, other := connect(servers), connect(servers)
	defer owner.Close()
	defer other.Close()
	open := zk.WorldACL(zk.PermAll)

	// A digest, given before and after the node is there.
	digest := func(conn *zk.Conn, secret string) func() error {
		return func() error { return conn.AddAuth("digest", []byte(secret)) }
	}
	within("add a digest", digest(owner, "desk:secret"), nil)
	create := func(conn *zk.Conn, path string, flags int32, acl []zk.ACL) func() error {
		return func() error { _, err := conn.Create(path, []byte("a"), flags, acl); return err }
	}
	get := func(conn *zk.Conn, path string) func() error {
		return func() error { _, _, err := conn.Get(path); return err }
	}
	within("create for the digest", create(owner, "/go", 0, zk.DigestACL(zk.PermAll, "desk", "secret")), nil)
	within("read with the digest", get(owner, "/go"), nil)
	within("read without the digest", get(other, "/go"), zk.ErrNoAuth)
	within("add a wrong digest", digest(other, "desk:wrong"), nil)
	within("read with a wrong digest", get(other, "/go"), zk.ErrNoAuth)
	within("add the digest later", digest(other, "desk:secret"), nil)
	within("read after that", get(other, "/go"), nil)

	// Nodes of all kinds.
	within("create twice", create(owner, "/go", 0, open), zk.ErrNodeExists)
	within("create an ephemeral", create(other, "/go/e", zk.FlagEphemeral, open), nil)
	within("a child of an ephemeral", create(owner, "/go/e/x", 0, open), zk.ErrNoChildrenForEphemerals)
	for want := 0; want < 3; want++ {
		path, err := owner.Create("/go/s-", nil, zk.FlagSequence, open)
		expect(fmt.Sprintf("a sequence: %s, %v", path, err),
			err == nil && path == fmt.Sprintf("/go/s-%010d", want+1))
	}
	path, err := owner.CreateContainer("/go/c", nil, zk.FlagContainer, open)
	expect(fmt.Sprintf("a container: %s, %v", path, err), err == nil && path == "/go/c")
	_, stat, err := owner.Exists("/go/c")
	expect("a container has no owner", err == nil && stat.EphemeralOwner == 0)

	// A transaction is done as a whole or not at all, and names the operation that failed.
	results, err := owner.Multi(
		&zk.CreateRequest{Path: "/go/m", Acl: open},
		&zk.SetDataRequest{Path: "/go/m", Data: []byte("b"), Version: 0},
		&zk.CheckVersionRequest{Path: "/go/m", Version: 1})
	expect(fmt.Sprintf("a transaction: %v", err), err == nil && len(results) == 3)
	_, err = owner.Multi(&zk.DeleteRequest{Path: "/go/m", Version: -1},
		&zk.DeleteRequest{Path: "/go/none", Version: -1})
	expect(fmt.Sprintf("half a transaction: %v", err), err == zk.ErrNoNode)
	within("its first half is undone", get(owner, "/go/m"), nil)

	// A watch, and the ephemeral of a session that ends.
	_, _, gone, err := owner.ExistsW("/go/e")
	expect(fmt.Sprintf("a watch: %v", err), err == nil)
	other.Close()
	select {
	case event := <-gone:
		expect(fmt.Sprintf("the event: %v", event), event.Type == zk.EventNodeDeleted)
	case <-time.After(callLimit):
		log.Fatal("go: no event when a session ended")
	}

	// Twenty clients take one lock in turn.
	var holders, most int
	var mutex sync.Mutex
	var all sync.WaitGroup
	for client := 0; client < 20; client++ {
		all.Add(1)
		go func() {
			defer all.Done()
			conn := connect(servers[client%len(servers) : client%len(servers)+1])
			defer conn.Close()
			lock := zk.NewLock(conn, "/go-lock", open)
			if err := lock.Lock(); err != nil {
				log.Fatalf("go: lock: %v", err)
			}
			mutex.Lock()
			holders++
			most = max(most, holders)
			mutex.Unlock()
			time.Sleep(5 * time.Millisecond)
			mutex.Lock()
			holders--
			mutex.Unlock()
			if err := lock.Unlock(); err != nil {
				log.Fatalf("go: unlock: %v", err)
			}
		}()
	}
	all.Wait()
	expect("one holder of a lock at a time", most == 1)
	fmt.Printf("go: %d checks passed\n", checks)
}
