// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package record is `tritonctl record`.
package record

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/sidecar/sim/workload"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// Options are the command's inputs.
type Options struct {
	*factory.Factory
	length   time.Duration
	file     string
	snapshot string
}

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	o := &Options{Factory: f}
	c := &cobra.Command{
		Use:   "record",
		Short: "Record what arrives at a running conch, for replay and advise",
		Long: `record writes a trace of live requests: when, of which model, how many rows and
bytes, with which deadline. Tensors, parameters and callers are never in it.
Ctrl-C ends it early and keeps what there is.`,
		Example: `  tritonctl record --for 30s --file trace --snapshot snapshot.json
  tritonctl replay trace --discipline adaptive,eager`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c.Context()) },
	}
	c.Flags().DurationVar(&o.length, "for", 30*time.Second, "how long")
	c.Flags().StringVarP(&o.file, "file", "f", "trace", "file of the trace, written over if it is there")
	c.Flags().StringVar(&o.snapshot, "snapshot", "", "file for what conch knows of GPUs, models and profiles at the end, for a replay without conch")
	return c
}

// summary is what was recorded.
type summary struct {
	File string `json:"file"`
	api.Recorded
	Models []string `json:"models"`
}

func (o *Options) run(ctx context.Context) error {
	if o.length <= 0 {
		return fmt.Errorf("%w: --for %v is not above 0", factory.ErrUsage, o.length)
	}
	conch, err := o.Client()
	if err != nil {
		return err
	}
	if o.snapshot != "" {
		// Before the recording, not after it.
		file, err := os.OpenFile(o.snapshot, os.O_CREATE|os.O_WRONLY, 0o644) //nolint:gosec // names and latencies, no secrets
		if err != nil {
			return fmt.Errorf("--snapshot: %w", err)
		}
		if err := file.Close(); err != nil {
			return fmt.Errorf("--snapshot: %w", err)
		}
	}
	o.Begin("recording into %s; Ctrl-C ends it early", o.file).Lasts(o.length)
	s, err := record(ctx, conch, o.length, func() (io.WriteCloser, error) { return os.Create(o.file) })
	s.File = o.file
	if err != nil {
		return err
	}
	if o.snapshot != "" {
		// The caller may have ended the recording; the snapshot is wanted nevertheless.
		raw, err := conch.Snapshot(context.WithoutCancel(ctx))
		if err != nil {
			return err
		}
		var text bytes.Buffer
		if err := json.Indent(&text, raw, "", "  "); err != nil {
			return err
		}
		text.WriteByte('\n')
		if err := os.WriteFile(o.snapshot, text.Bytes(), 0o644); err != nil { //nolint:gosec // names and latencies, no secrets
			return err
		}
	}
	return o.Print(s, func(t *output.Table) {
		t.Line(fmt.Sprintf("%d requests of %d models are in %s", s.Requests, len(s.Models), s.File))
		if s.Lost > 0 {
			t.Line(fmt.Sprintf("%d more arrived faster than they could be written, and are lost", s.Lost))
		}
		if ctx.Err() != nil {
			t.Line("ended early; what conch had not sent yet is not in it")
		}
	})
}

// record copies whole entries only, so that a trace that is cut off can be read. It
// opens the file once conch records: a refusal leaves an earlier trace alone.
func record(ctx context.Context, conch *client.Client, length time.Duration, create func() (io.WriteCloser, error)) (summary, error) {
	from, to := io.Pipe()
	var got api.Recorded
	done := make(chan error, 1)
	go func() {
		var err error
		got, err = conch.Record(ctx, length, to)
		done <- err
		to.CloseWithError(err)
	}()
	s, err := entries(from, create)
	from.CloseWithError(err)
	ended := <-done
	s.Lost = got.Lost
	if ctx.Err() != nil {
		return s, nil //nolint:nilerr // the person ended it, which is what ended the two parts
	}
	if ended != nil {
		err = ended // the other's error is its echo, or the other way round
	}
	if err != nil {
		return s, err
	}
	if got.Requests != s.Requests {
		return s, fmt.Errorf("conch sent %d requests, and %d arrived", got.Requests, s.Requests)
	}
	return s, nil
}

func entries(from io.Reader, create func() (io.WriteCloser, error)) (s summary, err error) {
	r, err := workload.NewReader(from)
	if err != nil {
		return s, err
	}
	into, err := create()
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, into.Close()) }()
	w, err := workload.NewWriter(into, r.Header)
	if err != nil {
		return s, err
	}
	// The file says from the beginning that a recording is under way.
	if err := w.Flush(); err != nil {
		return s, err
	}
	var a workload.Arrival
	for r.Next(&a) {
		for _, m := range r.Models()[len(s.Models):] {
			if _, err := w.Model(m); err != nil {
				return s, err
			}
			s.Models = append(s.Models, m.Name)
		}
		if err := w.Write(a); err != nil {
			return s, err
		}
		s.Requests++
	}
	return s, errors.Join(w.Flush(), r.Err())
}
