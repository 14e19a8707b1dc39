// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"slices"
	"sync"
)

// A slab can be opened under its name only until that is unlinked, which is soon, so that a crash leaves nothing behind. So a server that is to read what
// another one has written gets the slabs that the other one's pool makes from then on, and those that there are are replaced. Until then, and where it
// denies them, what it is to read is copied, or goes through the socket.

// share has the slabs of the pool registered with the server of another one, too, which is to read what this one's writes.
func (p *Pool) share(reader *Pool) {
	p.mu.Lock()
	if p.closed || p.growing {
		p.mu.Unlock() // it is called again when something is to be read
		return
	}
	if !slices.Contains(p.readers, reader) {
		p.readers = append(p.readers, reader)
	}
	var old []*slab
	p.slabs = slices.DeleteFunc(p.slabs, func(s *slab) bool {
		lacks, whole := s.lacks(reader)
		if lacks = lacks && (whole || p.size+smallestSlab <= p.limit); lacks { // else the rest of it would be lost for no other
			old = append(old, s)
		}
		return lacks
	})
	p.mu.Unlock()
	for _, s := range old {
		p.letGo(s, true)
	}
}

// offer registers a new slab, which is held, with the servers of readers, unlinks its name then, and releases it. The pool's own server uses it meanwhile.
func (p *Pool) offer(s *slab, readers []*Pool) {
	defer s.release()
	var all sync.WaitGroup
	for _, r := range readers {
		all.Go(func() {
			if !r.takes(p.background, s) {
				p.mu.Lock()
				p.readers = slices.DeleteFunc(p.readers, func(o *Pool) bool { return o == r }) // until it is to read again
				p.mu.Unlock()
			}
		})
	}
	all.Wait()
	if err := unlink(s.region); err != nil {
		p.log.Warn("the name of a shared memory object cannot be removed", "object", s.region, "error", err)
	}
}

// takes registers the slab of another pool with the pool's server. It returns false if the pool is closed.
func (p *Pool) takes(ctx context.Context, s *slab) bool {
	p.mu.Lock()
	epoch, closed, shuns := p.epoch.Load(), p.closed, p.shuns || p.denied
	s.offers(p)
	p.mu.Unlock()
	if closed || shuns {
		return !closed
	}
	ctx, cancel := context.WithTimeout(ctx, registration)
	defer cancel()
	defer context.AfterFunc(p.background, cancel)()
	err := p.server.Register(ctx, s.region, "/"+s.region, int64(len(s.memory)))
	if err == nil {
		s.mapped(p)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case epoch != p.epoch.Load() || p.closed:
	case err == nil:
		p.known[s] = true
	default:
		p.shuns = true
		p.log.Info("what other servers write is copied for this one: it does not take their shared memory", "error", err)
	}
	return !p.closed
}
