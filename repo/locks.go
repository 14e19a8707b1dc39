// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package repo

import "sync"

// locks are a lock for every directory that somebody works in. The zero value
// is ready.
type locks struct {
	mu  sync.Mutex
	all map[string]*sharedLock
}

// sharedLock is there as long as somebody holds it or waits for it.
type sharedLock struct {
	sync.Mutex
	users int
}

// lock waits until nobody else works in dir. What it returns ends one's own work.
func (l *locks) lock(dir string) (unlock func()) {
	l.mu.Lock()
	one := l.all[dir]
	if one == nil {
		if l.all == nil {
			l.all = map[string]*sharedLock{}
		}
		one = &sharedLock{}
		l.all[dir] = one
	}
	one.users++
	l.mu.Unlock()
	one.Lock()
	return func() {
		one.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		if one.users--; one.users == 0 {
			delete(l.all, dir)
		}
	}
}
