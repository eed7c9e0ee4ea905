// etcd as a server, and puts of single keys as its load.
//
//	etcd-peer server FLAGS-OF-ETCD
//	etcd-peer load --endpoints A,B,C --outstanding N --pids P,Q,R
//
// The load prints a line of JSON: puts per second, their times, and processor time per put of the
// servers and of the load itself.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"go.uber.org/zap"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "server" {
		etcdmain.Main(append(os.Args[:1], os.Args[2:]...))
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "load" {
		if err := load(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	fmt.Fprintln(os.Stderr, "usage: etcd-peer server|load ...")
	os.Exit(2)
}

func load(args []string) error {
	flags := flag.NewFlagSet("load", flag.ContinueOnError)
	endpoints := flags.String("endpoints", "", "servers, separated by commas")
	outstanding := flags.Int("outstanding", 6000, "puts under way")
	connections := flags.Int("connections", 4, "connections to each server")
	keys := flags.Int("keys", 1000, "number of keys")
	valueBytes := flags.Int("value-bytes", 16, "bytes of a value")
	warmUp := flags.Duration("warm-up", 5*time.Second, "time before the measurement")
	duration := flags.Duration("duration", 5*time.Second, "duration of the measurement")
	pids := flags.String("pids", "", "processes of the servers, separated by commas")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var clients []*clientv3.Client
	for _, endpoint := range strings.Split(*endpoints, ",") {
		for range *connections {
			config := clientv3.Config{
				Endpoints: []string{endpoint}, DialTimeout: 10 * time.Second, Logger: zap.NewNop(),
			}
			client, err := clientv3.New(config)
			if err != nil {
				return err
			}
			defer client.Close()
			clients = append(clients, client)
		}
	}
	value := strings.Repeat("v", *valueBytes)
	var counts, ends atomic.Bool
	var done atomic.Int64
	var failure atomic.Value
	var all sync.WaitGroup
	times := make([][]time.Duration, *outstanding)
	for worker := range *outstanding {
		all.Add(1)
		go func() {
			defer all.Done()
			random := rand.New(rand.NewSource(int64(worker)))
			client := clients[worker%len(clients)]
			for !ends.Load() {
				key := fmt.Sprintf("/bench/%d", random.Intn(*keys))
				begin := time.Now()
				if _, err := client.Put(context.Background(), key, value); err != nil {
					failure.Store(err)
					return
				}
				done.Add(1)
				if counts.Load() {
					times[worker] = append(times[worker], time.Since(begin))
				}
			}
		}()
	}
	time.Sleep(*warmUp)
	before, begin, servers, own := done.Load(), time.Now(), cpuOf(*pids), ownCPU()
	counts.Store(true)
	time.Sleep(*duration)
	counts.Store(false)
	count, seconds := float64(done.Load()-before), time.Since(begin).Seconds()
	servers, own = cpuOf(*pids)-servers, ownCPU()-own
	ends.Store(true)
	all.Wait()
	if err, _ := failure.Load().(error); err != nil {
		return err
	}
	var sorted []time.Duration
	for _, some := range times {
		sorted = append(sorted, some...)
	}
	sort.Slice(sorted, func(a, b int) bool { return sorted[a] < sorted[b] })
	at := func(share float64) float64 {
		if len(sorted) == 0 {
			return 0
		}
		return float64(sorted[int(share*float64(len(sorted)-1))].Microseconds())
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"operations_per_s":          count / seconds,
		"outstanding":               *outstanding,
		"sessions":                  len(clients),
		"times_us":                  map[string]float64{"p50": at(.5), "p90": at(.9), "p99": at(.99)},
		"cpu_us_per_operation":      servers / count,
		"load_cpu_us_per_operation": own / count,
		"load_cpu_share":            own / seconds / 1e6,
	})
}

// Processor time of this process in microseconds.
func ownCPU() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	us := func(t syscall.Timeval) float64 { return float64(t.Sec)*1e6 + float64(t.Usec) }
	return us(usage.Utime) + us(usage.Stime)
}

// Processor time of other processes in microseconds, out of the run times of their threads.
func cpuOf(pids string) float64 {
	sum := 0.0
	for _, pid := range strings.Split(pids, ",") {
		tasks, err := os.ReadDir("/proc/" + pid + "/task")
		if err != nil {
			continue
		}
		for _, task := range tasks {
			text, err := os.ReadFile("/proc/" + pid + "/task/" + task.Name() + "/schedstat")
			var ns float64
			if err == nil {
				fmt.Sscan(string(text), &ns)
			}
			sum += ns / 1e3
		}
	}
	return sum
}
