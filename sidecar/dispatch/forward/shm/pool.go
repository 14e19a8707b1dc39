// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

// Registrar is the server's side of the system shared memory extension.
type Registrar interface {
	// Register makes size bytes of the shared memory object key known as region.
	Register(ctx context.Context, region, key string, size int64) error
	// Unregister makes the server unmap the region.
	Unregister(ctx context.Context, region string) error
}

// Options of New.
type Options struct {
	// Limit is the most bytes that the pool's slabs may have together.
	Limit int64
	// Logger logs why there is no shared memory; nil discards.
	Logger *slog.Logger
}

const (
	// smallestSlab keeps the number of slabs, and so of registrations, small.
	smallestSlab = 8 << 20
	// alignment of blocks: a cache line.
	alignment = 64
	// registration bounds the calls to the server.
	registration = 5 * time.Second
)

// Pool is the shared memory of one server. It is safe for concurrent use.
type Pool struct {
	server     Registrar
	limit      int64
	log        *slog.Logger
	background context.Context // ends with Close
	cancel     context.CancelFunc
	tasks      sync.WaitGroup

	mu      sync.Mutex
	slabs   []*slab
	known   map[*slab]bool // that the server has mapped since the last Discard, other pools' included, and has not been asked to unmap
	readers []*Pool        // whose servers get the slabs of this pool, too
	size    int64          // of slabs, of those that are being made, of those that are let go because a reader lacks them, and of those that are kept
	kept    int64          // of those that were let go, and of which the server has what was forsaken until its end
	ends    int64          // counts the ends of servers
	growing bool
	denied  bool // slabs, by the server or the system, until the next Discard
	shuns   bool // the server has denied the slab of another pool since the last Discard
	closed  bool
	epoch   atomic.Int64 // counts Discards: a slab that was begun before one is given up. It changes with mu
}

// New makes a pool without memory. Close it.
func New(server Registrar, o Options) *Pool {
	p := &Pool{server: server, limit: o.Limit, log: o.Logger, known: make(map[*slab]bool)}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	p.background, p.cancel = context.WithCancel(context.Background())
	return p
}

// Take lends n bytes, 0 < n. It never waits: false means that there is no room
// now. The contents are not cleared.
func (p *Pool) Take(n int) (*Block, bool) {
	if n <= 0 {
		return nil, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.slabs {
		if offset, ok := s.take(n); ok {
			return &Block{slab: s, offset: offset, Data: s.memory[offset : offset+n : offset+n]}, true
		}
	}
	p.grow(n)
	return nil, false
}

// grow makes a slab that n bytes fit into, in the background, unless one is being
// made. Guarded by mu.
func (p *Pool) grow(n int) {
	size := int64(smallestSlab)
	for size < int64(n) {
		size *= 2
	}
	if p.growing || p.denied || p.closed || p.size+size > p.limit {
		return
	}
	p.growing, p.size = true, p.size+size
	epoch, readers := p.epoch.Load(), slices.Clone(p.readers)
	p.tasks.Go(func() {
		s, err := p.make(size, len(readers) > 0)
		if err == nil && len(readers) > 0 {
			s.hold() // until it was offered
		}
		p.mu.Lock()
		fits := err == nil && epoch == p.epoch.Load() && !p.closed
		switch {
		case fits:
			p.slabs = append(p.slabs, s)
			p.known[s] = true
		case epoch == p.epoch.Load():
			p.size -= size
			p.denied = true
		}
		closed := p.closed
		p.mu.Unlock()
		if err == nil && len(readers) > 0 {
			p.offer(s, readers)
		}
		if err == nil && !fits {
			p.letGo(s, false)
		}
		if err != nil && !closed {
			p.log.Info("tensors go through the socket: no shared memory with the server", "bytes", size, "error", err)
		}
		p.mu.Lock()
		p.growing = false
		p.mu.Unlock()
	})
}

// make makes a slab and registers it with the server. Its name is gone then, unless it is kept for further servers.
func (p *Pool) make(size int64, keepName bool) (*slab, error) {
	name := batch.LentPrefix + strings.ToLower(rand.Text())
	s, err := newSlab(name, size)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(p.background, registration)
	defer cancel()
	err = p.server.Register(ctx, name, "/"+name, size)
	if err != nil || !keepName {
		// The server has the object open now, or will never open it.
		if unlinked := unlink(name); err == nil {
			err = unlinked
		}
	}
	if err != nil {
		s.condemn(nil)
		return nil, fmt.Errorf("register %d bytes of shared memory: %w", size, err)
	}
	s.pool, s.with = p, []*Pool{p}
	return s, nil
}

// Check reports why a server does not share memory with this process: it is on another host, has a /dev/shm of its own, may not open what this user has
// made, or does not take regions of clients at all. It registers a region, of which no server can guess the name, and unregisters it.
func Check(ctx context.Context, server Registrar) error {
	const size = 4 << 10
	name := batch.LentPrefix + strings.ToLower(rand.Text())
	s, err := newSlab(name, size)
	if err != nil {
		return err
	}
	if err = server.Register(ctx, name, "/"+name, size); err == nil {
		err = server.Unregister(ctx, name)
	}
	err = errors.Join(err, unlink(name))
	s.condemn(nil)
	return err
}

// letGo condemns a slab, and unregisters it with the servers once nothing of it is lent. Triton unmaps a region at once when it is unregistered, and
// crashes if an execution writes there afterwards. So a slab of which a block was forsaken stays registered until the servers' end, and so does, with the
// pool's own server, one of which something is lent when the pool is closed. Counted: it counts for the limit until it is unregistered. One that stays
// registered counts until the server's end.
func (p *Pool) letGo(s *slab, counted bool) {
	size := int64(len(s.memory))
	p.mu.Lock()
	epoch, ends := p.epoch.Load(), p.ends
	p.mu.Unlock()
	s.condemn(func(unused bool) {
		p.mu.Lock()
		switch still := counted && epoch == p.epoch.Load(); {
		case unused && still:
			p.size -= size
		case unused || ends != p.ends:
		case still:
			p.kept += size
		default:
			p.kept, p.size = p.kept+size, p.size+size
		}
		p.mu.Unlock()
		for _, with := range s.with {
			with.forget(s, unused)
		}
	})
}

// forget notes that nothing of a slab is lent any more, and unregisters it with the pool's server if that does not use it.
func (p *Pool) forget(s *slab, unused bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.known, s)
	if !unused || p.closed {
		return
	}
	p.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(p.background), registration)
		defer cancel()
		if err := p.server.Unregister(ctx, s.region); err != nil {
			p.log.Debug("the server keeps a shared memory region until it ends", "region", s.region, "error", err)
		}
	})
}

// Discard takes all memory out of use, because the server may
// still write to it after a call that was given up. Blocks that are lent stay
// valid until they are freed. The pool grows again when it is used, within its limit, to which counts what was forsaken.
func (p *Pool) Discard() { p.discard(false) }

// Ended is Discard for a server that has ended, or that has lost all memory: nothing that was lent to it counts any more.
func (p *Pool) Ended() { p.discard(true) }

func (p *Pool) discard(ended bool) {
	p.mu.Lock()
	p.epoch.Add(1)
	if ended {
		p.ends++
		p.kept = 0
	}
	slabs := p.slabs
	p.slabs, p.size, p.denied, p.shuns = nil, p.kept, false, false
	clear(p.known)
	p.mu.Unlock()
	for _, s := range slabs {
		p.letGo(s, false)
	}
}

// Close gives all memory up and waits until the server has unregistered it, or
// failed to.
func (p *Pool) Close() {
	p.Discard()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.tasks.Wait()
}
