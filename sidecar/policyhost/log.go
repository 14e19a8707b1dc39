// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policyhost

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// internalName is the name under which go-plugin logs its own doings; what the
// policy writes comes under a name below it.
const internalName = "go-plugin"

// pluginLogger is the logger that go-plugin requires, writing to l. go-plugin's own
// messages are for debugging only, because the host has events of its own.
func pluginLogger(l *gate) hclog.Logger {
	h := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: internalName, Level: hclog.Trace, Output: io.Discard})
	h.RegisterSink(&sink{l: l})
	return h
}

// maxLines a second of one policy come into the log.
const maxLines = 100

// gate logs what a policy writes, up to maxLines a second.
type gate struct {
	l   *slog.Logger
	now func() time.Time

	mu    sync.Mutex
	since time.Time
	lines int
}

func (g *gate) log(level slog.Level, line string, args ...any) {
	g.mu.Lock()
	if now := g.now(); g.since.IsZero() || now.Sub(g.since) >= time.Second {
		g.since, g.lines = now, 0
	}
	g.lines++
	lines := g.lines
	g.mu.Unlock()
	switch {
	case lines <= maxLines:
		g.l.Log(context.Background(), level, line, args...)
	case lines == maxLines+1:
		g.l.Warn("the policy writes more than the log takes: further lines of this second are left out", "lines", maxLines)
	}
}

type sink struct{ l *gate }

// Accept implements [hclog.SinkAdapter].
func (s *sink) Accept(name string, level hclog.Level, msg string, args ...any) {
	to := slog.LevelDebug
	if name != internalName && name != internalName+".stdio" {
		switch level {
		case hclog.Info:
			to = slog.LevelInfo
		case hclog.Warn:
			to = slog.LevelWarn
		case hclog.Error:
			to = slog.LevelError
		}
	}
	if level == hclog.Trace {
		return
	}
	if name == internalName {
		s.l.l.Log(context.Background(), to, msg, args...)
		return
	}
	s.l.log(to, msg, args...)
}

// maxLine bounds a line of a policy's output, so that one without line breaks
// does not fill the memory.
const maxLine = 8 << 10

// lineLogger logs what is written to it line by line: what a policy prints.
type lineLogger struct {
	l  *gate
	mu sync.Mutex
	b  []byte
}

// Write implements [io.Writer]; it never fails.
func (w *lineLogger) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(p)
	for len(p) > 0 {
		line, rest, ended := bytes.Cut(p, []byte{'\n'})
		p = rest
		w.b = append(w.b, line...)
		if ended || len(w.b) > maxLine {
			w.l.log(slog.LevelInfo, string(w.b))
			w.b = w.b[:0]
		}
	}
	return n, nil
}
