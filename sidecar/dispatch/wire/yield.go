// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
)

// longNetwork is how many bytes a goroutine reads and handles without a wait for more, before it asks the network who else has got something.
const longNetwork = 1 << 20

// turns counts what a goroutine that reads a connection has handled.
type turns struct {
	handled int // bytes since goroutines that were ready had their turn
	since   int // bytes since the network was asked
}

// add counts n bytes.
func (t *turns) add(n int) { t.handled, t.since = t.handled+n, t.since+n }

// rest gives way where the turn was long.
func (t *turns) rest() {
	switch {
	case t.since > longNetwork:
		t.handled, t.since = 0, 0
		askNetwork()
	case t.handled > longTurn:
		t.handled = 0
		runtime.Gosched()
	}
}

// waited says that the goroutine has waited for its socket: the network was asked.
func (t *turns) waited() { t.handled, t.since = 0, 0 }

// askNetwork gives way to every goroutine that is ready, those included for whose sockets something has come. Gosched does not: as long as any goroutine is known to be ready the
// runtime does not look at the network, but every 10 ms. So the goroutine waits for a pipe of its own into which it has written: it goes on with the next
// look at the network, and then after all whom that finds. Where mostAsks do so already it merely gives way.
func askNetwork() {
	if asking.Add(1) <= mostAsks {
		a, _ := asks.Get().(*ask)
		if a == nil {
			a = newAsk()
		}
		if a != nil && a.wait() { // nil: there are no descriptors
			asks.Put(a)
		}
	}
	asking.Add(-1)
	runtime.Gosched() // of those that one look finds the runtime takes the last one first
}

// mostAsks is how many pipes are waited for at once. Each takes two descriptors, of which clients' connections need most, and one look at the network is for all.
const mostAsks = 16

var (
	asking atomic.Int32
	// asks has pipes, which are closed when they are collected.
	asks sync.Pool
)

// ask is a pipe that one goroutine at a time waits for.
type ask struct {
	r, w  *os.File
	raw   syscall.RawConn
	asked bool
	err   error
	bytes [1]byte
}

func newAsk() *ask {
	r, w, err := os.Pipe()
	if err != nil {
		return nil
	}
	raw, err := r.SyscallConn()
	if err != nil {
		return nil
	}
	return &ask{r: r, w: w, raw: raw}
}

// wait reports whether it has gone as it should.
func (a *ask) wait() bool {
	a.asked, a.err = false, nil
	err := a.raw.Read(func(fd uintptr) bool {
		if !a.asked { // in here: what comes before is not waited for
			a.asked = true
			_, a.err = a.w.Write(a.bytes[:])
			return a.err != nil
		}
		_, a.err = readNow(int(fd), a.bytes[:])
		return a.err != syscall.EAGAIN //nolint:errorlint // it comes bare
	})
	return err == nil && a.err == nil
}
