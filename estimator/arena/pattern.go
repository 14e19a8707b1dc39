// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package arena

import "slices"

// Event is a value's memory being taken or given back, in the order of an execution. Values have small numbers; each is taken before it is given back.
type Event struct {
	Value int
	// Bytes is the size of a value that is taken; 0 gives it back.
	Bytes int64
	// Result says that the value is one of the model's outputs: it never lies in the common block, and is given back after the execution.
	Result bool
}

// Run plays two executions of the same shapes: one that places values one by one, and one whose values lie in a common block. Further ones change nothing.
func (a *Arena) Run(events []Event, values int) {
	blocks := make([]Block, values)
	var results []int
	for _, e := range events {
		switch {
		case e.Bytes > 0:
			blocks[e.Value] = a.Alloc(e.Bytes)
			if e.Result {
				results = append(results, e.Value)
			}
		case !e.Result:
			a.Free(blocks[e.Value])
		}
	}
	giveBack := func() {
		for _, v := range results {
			a.Free(blocks[v])
		}
	}
	giveBack()
	common := Block{extent: -1}
	if n := Common(events); n > 0 {
		common = a.Alloc(n)
	}
	for _, e := range events {
		if e.Result && e.Bytes > 0 {
			blocks[e.Value] = a.Alloc(e.Bytes)
		}
	}
	if common.extent >= 0 {
		a.Free(common)
	}
	giveBack()
}

// place is a value within the common block.
type place struct {
	value    int
	at, size int64
}

// patternAlignment is what sizes within the common block are rounded up to.
const patternAlignment = 64

// Common is the size in bytes of the block that holds all values but the results from the second execution on. Each value takes the smallest gap between the present ones that it
// fits into, or the end.
func Common(events []Event) int64 {
	var there []place // in the order of their places
	size := int64(0)
	for _, e := range events {
		if e.Result {
			continue
		}
		if e.Bytes == 0 {
			if i := slices.IndexFunc(there, func(p place) bool { return p.value == e.Value }); i >= 0 {
				there = slices.Delete(there, i, i+1)
			}
			continue
		}
		need := (min(e.Bytes, mostBytes) + patternAlignment - 1) / patternAlignment * patternAlignment
		at, into, least, end := int64(-1), len(there), int64(-1), int64(0)
		for i, p := range there {
			if gap := p.at - end; gap >= need && (least < 0 || gap-need < least) {
				at, into, least = end, i, gap-need
			}
			end = max(end, p.at+p.size)
		}
		if gap := size - end; gap >= need && (least < 0 || gap-need < least) {
			at, into, least = end, len(there), gap-need
		}
		if least < 0 {
			at = end
		}
		there = slices.Insert(there, into, place{e.Value, at, need})
		size = max(size, at+need)
	}
	return size
}

// Peak is the largest sum of values that are there at the same time.
func Peak(events []Event, values int) int64 {
	sizes := make([]int64, values)
	now, most := int64(0), int64(0)
	for _, e := range events {
		if e.Bytes > 0 {
			sizes[e.Value] = min(e.Bytes, mostBytes)
			now += sizes[e.Value]
			most = max(most, now)
		} else {
			now -= sizes[e.Value]
		}
	}
	return most
}
