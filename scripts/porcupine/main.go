// Command porcupine checks histories of registers for linearizability, with the library of that name.
//
// Each line of standard input is an operation in JSON. A register has a value and a version, which counts its
// writes; both are 0 before the first write. A write answers with the version that it made. A write without
// an answer may have taken effect at any later time; the version that it made is needed all the same, because
// the search would else try all subsets of such writes. Prints the histories that are not linearizable, and
// then the counts; exits with 1 when there are any, and with 2 without a verdict.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// Longest search in one history.
const patience = 5 * time.Minute

type operation struct {
	History string `json:"history"`
	Client  int    `json:"client"`
	Key     string `json:"key"`
	Write   bool   `json:"write"`
	// What was written, or what was read.
	Value int64 `json:"value"`
	// What the write made, or what was read.
	Version int64 `json:"version"`
	// Nanoseconds on one clock. The end is missing when no answer came.
	Begin int64  `json:"begin"`
	End   *int64 `json:"end"`
}

var register = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, one := range history {
			key := one.Input.(operation).Key
			byKey[key] = append(byKey[key], one)
		}
		var parts [][]porcupine.Operation
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() interface{} { return state{} },
	Step: func(before, input, _ interface{}) (bool, interface{}) {
		is, one := before.(state), input.(operation)
		if !one.Write {
			return is == state{one.Version, one.Value}, is
		}
		after := state{is.version + 1, one.Value}
		return one.Version == after.version, after
	},
}

type state struct{ version, value int64 }

// read returns the operations of each history, and the names of the histories in their order.
func read() (map[string][]porcupine.Operation, []string, int, error) {
	all, names, count := map[string][]porcupine.Operation{}, []string{}, 0
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var one operation
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			return nil, nil, 0, fmt.Errorf("line %d: %w", count+1, err)
		}
		end := int64(math.MaxInt64)
		if one.End != nil {
			end = *one.End
		}
		if _, known := all[one.History]; !known {
			names = append(names, one.History)
		}
		all[one.History] = append(all[one.History], porcupine.Operation{
			ClientId: one.Client, Input: one, Call: one.Begin, Return: end,
		})
		count++
	}
	return all, names, count, lines.Err()
}

func main() {
	all, names, count, err := read()
	if err != nil {
		fmt.Fprintln(os.Stderr, "porcupine:", err)
		os.Exit(2)
	}
	results := make([]porcupine.CheckResult, len(names))
	places := make(chan struct{}, runtime.NumCPU())
	var done sync.WaitGroup
	for at, name := range names {
		done.Add(1)
		places <- struct{}{}
		go func(at int, name string) {
			results[at] = porcupine.CheckOperationsTimeout(register, all[name], patience)
			<-places
			done.Done()
		}(at, name)
	}
	done.Wait()
	broken, open := 0, 0
	for at, name := range names {
		switch results[at] {
		case porcupine.Ok:
			continue
		case porcupine.Illegal:
			broken++
		default:
			open++
		}
		fmt.Printf("%s: %s\n", name, results[at])
	}
	fmt.Printf("%d histories, %d operations, %d not linearizable\n", len(names), count, broken)
	if open > 0 || count == 0 {
		fmt.Fprintf(os.Stderr, "porcupine: %d operations, %d searches without an end\n", count, open)
		os.Exit(2)
	}
	if broken > 0 {
		os.Exit(1)
	}
}
