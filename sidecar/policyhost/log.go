// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policyhost

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"sync"

	"github.com/hashicorp/go-hclog"
)

// internalName is the name under which go-plugin logs its own doings; what the
// policy writes comes under a name below it.
const internalName = "go-plugin"

// pluginLogger is the logger that go-plugin requires, writing to l. go-plugin's own
// messages are for debugging only, because the host has events of its own.
func pluginLogger(l *slog.Logger) hclog.Logger {
	h := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: internalName, Level: hclog.Trace, Output: io.Discard})
	h.RegisterSink(&sink{l: l})
	return h
}

type sink struct{ l *slog.Logger }

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
	s.l.Log(context.Background(), to, msg, args...)
}

// maxLine bounds a line of a policy's output, so that one without line breaks
// does not fill the memory.
const maxLine = 8 << 10

// lineLogger logs what is written to it line by line: what a policy prints.
type lineLogger struct {
	l  *slog.Logger
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
			w.l.Info(string(w.b))
			w.b = w.b[:0]
		}
	}
	return n, nil
}
