// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"net/http"
	"time"
)

// streamPatience is how long a caller may take nothing of what is written: a terminal that is stopped must hold up neither an order nor a recording, of which there is
// one at a time. The call ends then.
const streamPatience = time.Minute

// flushing writes a stream, and lets its writer say when it is worth sending.
type flushing struct {
	w http.ResponseWriter
	c *http.ResponseController
}

func stream(w http.ResponseWriter) flushing { return flushing{w, http.NewResponseController(w)} }

func (f flushing) Write(p []byte) (int, error) {
	f.wait()
	return f.w.Write(p)
}

func (f flushing) Flush() error {
	f.wait()
	return f.c.Flush()
}

// wait bounds what is written next; a writer of a test has no bounds.
func (f flushing) wait() { _ = f.c.SetWriteDeadline(time.Now().Add(streamPatience)) }

// over ends the bounds: the connection may serve another request.
func (f flushing) over() { _ = f.c.SetWriteDeadline(time.Time{}) }
