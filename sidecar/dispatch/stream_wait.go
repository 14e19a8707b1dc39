// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"sync"
)

// This file handles the requests of a stream that cannot begin when they are read, because their model does not run. They wait on goroutines of
// their own, while later requests are read and begun. Their answers keep the order that Triton's answers have.

// lineKey is the key of follow for the requests for a model that had to wait. They are handed on in their order, because a server must receive
// those of a sequence in order.
type lineKey struct{ model string }

// inLine reports whether a request for a model waits.
func (s *inferStream) inLine(model string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.steps[lineKey{model}] != nil
}

// awaitVariant accepts a request for an app whose wish no running variant meets. The request is answered once one runs.
func (s *inferStream) awaitVariant(c *call, f found) error {
	d, r := s.d, c.req
	if a, ok := c.admitted(); !ok {
		return s.refuse(r, false, d.early(c, &a))
	}
	before, over := s.follow(lineKey{f.inactive.Model})
	t := s.nextTurn(c.size) // whether its answers have an order is not known yet
	s.waiting.Add(1)
	r.Ref()
	wait := func() {
		defer r.Free()
		handedOn := sync.OnceFunc(func() { over(); s.waiting.Done() })
		defer handedOn()
		ends := false // another function ends the ticket
		defer func() {
			if !ends {
				c.closed()
			}
		}()
		route, a, ok := d.awaitFound(c, r, &c.asked, f)
		if !ok {
			err := d.early(c, &a)
			s.deliver(t, refused(r, err))
			before()
			return
		}
		queueable := d.arrive(c, route)
		if err := d.hazard(r, route.rules); err != nil {
			_, err = d.finish(c, answer{err: err, result: Refused, reason: reasonInvalid})
			s.deliver(t, refused(r, err))
			before()
			return
		}
		at, then := before, func() {}
		if route.name != f.inactive.Model { // those before it wait for something else
			at, then = then, before
		}
		if route.decoupled() {
			ends = true
			s.owe(c.size)
			s.deliver(t, nil)
			s.handOn(c, route.spec.Cold, at)
			then()
			return
		}
		at()
		await := s.way(c, route, queueable)()
		ends = true
		if route.name == f.inactive.Model {
			handedOn()
		}
		s.conclude(c, t, await)
		then()
	}
	if s.task(wait) {
		return nil
	}
	a := gone(s.ctx)
	err := d.early(c, &a)
	s.waiting.Done()
	over()
	r.Free()
	return err
}

// forwardLater forwards a request of a decoupled model once that is loaded, and those before it have been forwarded.
func (s *inferStream) forwardLater(c *call, cold bool) error {
	before, over := s.follow(lineKey{c.model.name})
	s.owe(c.size)
	s.waiting.Add(1)
	c.req.Ref()
	wait := func() {
		defer c.req.Free()
		defer s.waiting.Done()
		defer over()
		s.handOn(c, cold, before)
	}
	if s.task(wait) {
		return nil
	}
	_, err := s.d.finish(c, gone(s.ctx))
	s.waiting.Done()
	over()
	c.req.Free()
	return err
}

// handOn forwards a request of a decoupled model, which is owed an answer, when it is loaded and those before it have been handed on.
func (s *inferStream) handOn(c *call, cold bool, before func()) {
	if cold {
		if _, a, ok := s.d.awaitLoad(c); !ok {
			err := s.giveUp(c, a)
			if !s.mute() {
				if err := s.refuse(c.req, true, err); err != nil {
					s.cancel(err)
				}
			}
			before()
			return
		}
	}
	before()
	if s.ctx.Err() != nil { // those before it were not handed on
		_ = s.giveUp(c, gone(s.ctx)) // the call has ended: no message can be sent
		return
	}
	if err := s.forward(c); err != nil {
		s.cancel(err)
	}
}

// giveUp ends a request of a decoupled model, which is owed an answer, that is not forwarded.
func (s *inferStream) giveUp(c *call, a answer) error {
	_, err := s.d.finish(c, a)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.discharge(c.size)
	return err
}
