// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

const (
	// logPoll is how often a log that is followed is looked at.
	logPoll = 200 * time.Millisecond
	// longestTail bounds what is read of a log to find its last lines.
	longestTail = 16 << 20
)

// logs streams the log of a partition's server: its last ?tail=LINES (all of the
// present file where there is none), and with ?follow=true what comes after, over
// rotations and restarts, until the request ends.
func (s *server) logs(w http.ResponseWriter, r *http.Request) {
	lines := -1
	if text := r.URL.Query().Get("tail"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			s.fail(w, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("tail=%q is not a number of lines", text)})
			return
		}
		lines = n
	}
	partition := r.PathValue("partition")
	if remote, is := s.conch.(LogStreamer); is {
		text, err := remote.LogStream(r.Context(), partition, lines, r.URL.Query().Get("follow") == "true")
		if err != nil {
			s.fail(w, err)
			return
		}
		if text != nil {
			s.pass(w, r, partition, text)
			return
		}
	}
	path, err := s.conch.LogFile(r.Context(), partition)
	if err != nil {
		s.fail(w, err)
		return
	}
	file, err := os.Open(path)
	if err != nil {
		s.fail(w, &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("log of partition %s: %v", partition, err)})
		return
	}
	t := &tail{path: path, file: file}
	defer func() { _ = t.file.Close() }()
	if err := t.skip(lines); err != nil {
		s.fail(w, err)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	out := stream(w)
	defer out.over()
	if r.URL.Query().Get("follow") != "true" {
		if _, err := io.Copy(out, t.file); err != nil {
			panic(http.ErrAbortHandler) // the caller must not take half for the whole
		}
		return
	}
	next := func() string {
		path, err := s.conch.LogFile(r.Context(), partition)
		if err != nil {
			return ""
		}
		return path
	}
	if err := t.follow(r.Context(), out, next); err != nil && r.Context().Err() == nil {
		s.log.Warn("a log that was followed ended", "partition", partition, "error", err)
	}
}

// LogStreamer is an API of a conch whose servers write their logs elsewhere.
type LogStreamer interface {
	// LogStream is the output of a partition's server, as logs has it, until that ends or ctx does; nil where LogFile has it. The caller closes it.
	LogStream(ctx context.Context, partition string, lines int, follow bool) (io.ReadCloser, error)
}

// pass streams what a LogStreamer gives.
func (s *server) pass(w http.ResponseWriter, r *http.Request, partition string, text io.ReadCloser) {
	defer func() { _ = text.Close() }() // only read
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	out := stream(w)
	defer out.over()
	some := make([]byte, 32<<10)
	for {
		n, err := text.Read(some)
		if n > 0 {
			if _, err := out.Write(some[:n]); err != nil {
				return // nobody reads it
			}
			if err := out.Flush(); err != nil {
				return
			}
		}
		switch {
		case errors.Is(err, io.EOF), r.Context().Err() != nil:
			return
		case err != nil:
			s.log.Warn("a log broke off", "partition", partition, "error", err)
			panic(http.ErrAbortHandler) // the caller must not take half for the whole
		}
	}
}

// tail reads a log that grows, is moved aside, and is begun anew.
type tail struct {
	path string
	file *os.File
}

// skip goes to where the last lines begin; fewer than 0 are all.
func (t *tail) skip(lines int) error {
	if lines < 0 {
		return nil
	}
	size, err := t.file.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	from := max(0, size-longestTail)
	text := make([]byte, size-from)
	if _, err := t.file.ReadAt(text, from); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	at := len(text)
	for n := 0; at > 0; at-- {
		if text[at-1] == '\n' && at < len(text) {
			if n++; n == lines {
				break
			}
		}
	}
	if lines == 0 || len(bytes.TrimSpace(text)) == 0 {
		at = len(text)
	}
	_, err = t.file.Seek(from+int64(at), io.SeekStart)
	return err
}

// follow copies what is there and what comes, until ctx ends. Next is the log of
// the server that the partition has by now.
func (t *tail) follow(ctx context.Context, w flushing, next func() string) error {
	for {
		n, err := io.Copy(w, t.file)
		if err != nil {
			return err
		}
		if n > 0 {
			if err := w.Flush(); err != nil {
				return err
			}
		} else if err := t.turn(next); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(logPoll):
		}
	}
}

// turn goes over to another file once this one is read to its end: the log was
// moved aside, or the partition has another server.
func (t *tail) turn(next func() string) error {
	path := t.path
	if now := next(); now != "" {
		path = now
	}
	is, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it is being moved, and comes back
	}
	if err != nil {
		return err
	}
	was, err := t.file.Stat()
	if err != nil || os.SameFile(was, is) {
		return err
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	_ = t.file.Close() // only read
	t.path, t.file = path, file
	return nil
}
