// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package repo

import "sync"

// locks has a lock for every directory that a caller works in. The zero value
// is ready.
type locks struct {
	mu  sync.Mutex
	all map[string]*sharedLock
}

// sharedLock exists as long as a caller holds it or waits for it.
type sharedLock struct {
	sync.Mutex
	users int
}

// lock waits until no other caller works in dir. unlock admits the next caller.
func (l *locks) lock(dir string) (unlock func()) {
	l.mu.Lock()
	shared := l.all[dir]
	if shared == nil {
		if l.all == nil {
			l.all = map[string]*sharedLock{}
		}
		shared = &sharedLock{}
		l.all[dir] = shared
	}
	shared.users++
	l.mu.Unlock()
	shared.Lock()
	return func() {
		shared.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		if shared.users--; shared.users == 0 {
			delete(l.all, dir)
		}
	}
}
