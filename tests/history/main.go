// history: whether what several initiators have seen of shared blocks is linearizable. Porcupine decides.
//
//	history FILE      exit code 0: it is; 1: it is not, or FILE cannot be read
//
// FILE has one operation a line, as lab/history.py writes them, in any order:
//
//	{"client":3,"block":17,"op":"write","a":5,"call":1200,"ret":1900}
//
//	client     who: a client has one operation at a time
//	op         read: a was seen. write: a was written. cas (COMPARE AND WRITE): if a was there, b was written; "ok": whether it was
//	call, ret  when it was sent, and when its end was known: nanoseconds of one clock
//	maybe      true: nobody knows whether it took effect. It did between call and ret, or it never does
//
// Each block is 0 at first.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

type operation struct {
	Client, Block int
	Op            string
	A, B          int64
	Ok, Maybe     bool
	Call, Ret     int64
}

// The values that a block may have after an operation, if it had `was` before; none: it cannot have had this value.
func (o operation) after(was int64) []interface{} {
	var effect []interface{}
	switch {
	case o.Op == "read" && was == o.A:
		return []interface{}{was}
	case o.Op == "write":
		effect = []interface{}{o.A}
	case o.Op == "cas" && was == o.A && (o.Ok || o.Maybe):
		effect = []interface{}{o.B}
	case o.Op == "cas" && was != o.A && !o.Ok && !o.Maybe:
		return []interface{}{was}
	}
	if o.Maybe {
		return append(effect, was)
	}
	return effect
}

func (o operation) String() string {
	maybe := ""
	if o.Maybe {
		maybe = ", perhaps"
	}
	if o.Op == "cas" {
		return fmt.Sprintf("cas %d to %d: %v%s", o.A, o.B, o.Ok, maybe)
	}
	return fmt.Sprintf("%s %d%s", o.Op, o.A, maybe)
}

// One block.
var model = porcupine.NondeterministicModel{
	Init: func() []interface{} { return []interface{}{int64(0)} },
	Step: func(state, input, _ interface{}) []interface{} { return input.(operation).after(state.(int64)) },
	DescribeOperation: func(input, _ interface{}) string { return input.(operation).String() },
}

func read(path string) (blocks map[int][]porcupine.Operation, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	blocks = map[int][]porcupine.Operation{}
	lines := bufio.NewScanner(file)
	for number := 1; lines.Scan(); number++ {
		var o operation
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil || o.Ret < o.Call || (o.Op != "read" && o.Op != "write" && o.Op != "cas") {
			return nil, fmt.Errorf("%s, line %d: no operation: %v", path, number, err)
		}
		blocks[o.Block] = append(blocks[o.Block], porcupine.Operation{ClientId: o.Client, Input: o, Call: o.Call, Return: o.Ret})
	}
	return blocks, lines.Err()
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: history FILE")
		os.Exit(2)
	}
	blocks, err := read(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "history:", err)
		os.Exit(1)
	}
	count, good, began := 0, true, time.Now()
	for block, operations := range blocks {
		count += len(operations)
		if result, info := porcupine.CheckOperationsVerbose(model.ToModel(), operations, 5*time.Minute); result != porcupine.Ok {
			good = false
			fmt.Printf("block %d: %s\n", block, result)
			// The page shows the longest order that explains some of it, and what contradicts.
			if page, err := os.Create(fmt.Sprintf("%s.%d.html", os.Args[1], block)); err == nil {
				porcupine.Visualize(model.ToModel(), info, page)
				page.Close()
				fmt.Println("see", page.Name())
			}
		}
	}
	fmt.Printf("%d operations on %d blocks, linearizable: %v (%.1f s)\n", count, len(blocks), good, time.Since(began).Seconds())
	if !good {
		os.Exit(1)
	}
}
