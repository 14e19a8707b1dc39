// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/admin"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/sidecar/record"
)

// observed is a control loop of which only a snapshot is asked.
type observed struct{ admin.Control }

func (observed) Version() api.Version { return api.Version{Version: "v1", Mode: "observe"} }
func (observed) Snapshot(context.Context) (*policy.Snapshot, error) {
	return &policy.Snapshot{Revision: 3, Models: []*policy.Model{{Name: "a", SloUs: 25000}}}, nil
}

// script is a recorder that does what a test says.
type script func(context.Context, io.Writer) (requests, lost uint64, err error)

func (s script) Stream(ctx context.Context, w io.Writer, _ string) (requests, lost uint64, err error) {
	return s(ctx, w)
}

// recording is the admin API with the recorder.
type recording struct {
	admin.API
	of admin.API
}

func (r recording) Record(ctx context.Context, w io.Writer) (api.Recorded, error) {
	return r.of.Record(ctx, w)
}
func (r recording) Snapshot(ctx context.Context) (json.RawMessage, error) { return r.of.Snapshot(ctx) }

func TestATraceComesAsItGrowsAndSaysWhatWasLost(t *testing.T) {
	seen := make(chan struct{})
	c := serveAPI(t, recording{of: admin.Of(observed{}, script(func(ctx context.Context, w io.Writer) (uint64, uint64, error) {
		_, err := w.Write([]byte("head"))
		if err != nil {
			return 0, 0, err
		}
		if err := w.(interface{ Flush() error }).Flush(); err != nil {
			return 0, 0, err
		}
		<-seen // the caller has the beginning before the end
		<-ctx.Done()
		_, err = w.Write([]byte("tail"))
		return 7, 2, err
	}), nil)})
	var out bytes.Buffer
	got, err := c.Record(t.Context(), 50*time.Millisecond, writing(func(p []byte) (int, error) {
		if out.Len() == 0 {
			close(seen)
		}
		return out.Write(p)
	}))
	require.NoError(t, err)
	require.Equal(t, api.Recorded{Requests: 7, Lost: 2}, got)
	require.Equal(t, "headtail", out.String())
}

func TestARecordingThatIsRefusedOrCutOffIsAnError(t *testing.T) {
	for _, c := range []struct {
		name   string
		length time.Duration
		err    error
		code   api.Code
		is     error
	}{
		{name: "busy", length: time.Second, err: record.ErrBusy, code: api.CodeConflict},
		{name: "no length", length: 0, code: api.CodeInvalid},
		{name: "too long", length: 25 * time.Hour, code: api.CodeInvalid},
		{name: "cut off", length: time.Second, err: errors.New("the disk is full"), code: api.CodeInternal, is: client.ErrCutOff},
	} {
		t.Run(c.name, func(t *testing.T) {
			conch := serveAPI(t, recording{of: admin.Of(observed{}, script(func(_ context.Context, w io.Writer) (uint64, uint64, error) {
				if c.is != nil {
					_, _ = w.Write([]byte("head"))
					_ = w.(interface{ Flush() error }).Flush()
				}
				return 0, 0, c.err
			}), nil)})
			_, err := conch.Record(t.Context(), c.length, io.Discard)
			require.Error(t, err)
			require.Equal(t, c.code, api.CodeOf(err), err)
			if c.is != nil {
				require.ErrorIs(t, err, c.is)
			}
		})
	}
}

func TestTheSnapshotIsJSONWithTheNamesOfTheContract(t *testing.T) {
	c := serveAPI(t, recording{of: admin.Of(observed{}, script(nil), nil)})
	got, err := c.Snapshot(t.Context())
	require.NoError(t, err)
	require.Equal(t, `{"revision":"3","models":[{"name":"a","slo_us":"25000"}]}`, string(got))
}

type writing func([]byte) (int, error)

func (w writing) Write(p []byte) (int, error) { return w(p) }
