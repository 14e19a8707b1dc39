// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply

import "sync"

// mailbox holds messages for the loop. A sender does not wait.
type mailbox struct {
	mu     sync.Mutex
	mail   []func(*loop)
	closed bool
	signal chan struct{} // holds one while there is mail
}

func newMailbox() *mailbox {
	return &mailbox{signal: make(chan struct{}, 1)}
}

// put leaves a message. It is lost once the loop has ended.
func (b *mailbox) put(message func(*loop)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	b.mail = append(b.mail, message)
	select {
	case b.signal <- struct{}{}:
	default:
	}
}

// take takes everything out.
func (b *mailbox) take() []func(*loop) {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.mail
	b.mail = nil
	return all
}

// close refuses further mail.
func (b *mailbox) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
}
