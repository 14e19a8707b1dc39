// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"time"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

// Pauses before a lost connection is made again: the first, which doubles up to the longest.
const (
	firstPause   = 500 * time.Millisecond
	longestPause = 5 * time.Second
)

// Follow calls yield with the state of some topics once all of them are known, and again with every change, until ctx ends (nil) or yield fails
// (its error). A connection that is lost is made again, and goes on after the last change that came. Lost is told every failed attempt; its error ends
// Follow. So does an answer that would be the same again: an address that is no conch's, a token that is not the right one.
func (c *Client) Follow(ctx context.Context, topics []api.Topic, yield func(State) error, lost func(error) error) error {
	var state State
	var own error // of yield
	last := ""
	for pause := firstPause; ; {
		err := c.Watch(ctx, topics, last, func(change Change) error {
			if err := state.Take(change); err != nil {
				own = err
				return err
			}
			last, pause = change.ID, firstPause
			if state.Knows(topics...) {
				own = yield(state)
			}
			return own
		})
		switch {
		case own != nil:
			return own
		case ctx.Err() != nil:
			return nil
		}
		switch api.CodeOf(err) {
		case api.CodeInvalid, api.CodeNotFound, api.CodeUnauthenticated, api.CodeRefused:
			return err
		}
		if err := lost(err); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = min(longestPause, 2*pause)
	}
}
