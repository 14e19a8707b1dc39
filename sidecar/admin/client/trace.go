// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

// ErrCutOff means that a recording ended before its time: conch went, or had to
// give it up. What was written is good.
var ErrCutOff = errors.New("the recording was cut off")

// Snapshot is what a policy would see now: a policy.Snapshot as JSON with the
// names of policy.proto.
func (c *Client) Snapshot(ctx context.Context) (json.RawMessage, error) {
	return get[json.RawMessage](ctx, c, "/v1/snapshot")
}

// Record writes a trace of the requests that arrive during length to w, in the
// format conch-trace version 1: models, times, rows, bytes, deadlines, and never
// a tensor. One recording at a time; a second is CodeConflict.
func (c *Client) Record(ctx context.Context, length time.Duration, w io.Writer) (api.Recorded, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/v1/trace?for="+length.String(), nil)
	if err != nil {
		return api.Recorded{}, err
	}
	response, err := c.do(request)
	if err != nil {
		return api.Recorded{}, err
	}
	defer response.Body.Close()
	source := &failing{r: response.Body}
	if _, err := io.Copy(w, source); err != nil {
		if source.err != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", ErrCutOff, source.err)
		}
		return api.Recorded{}, err
	}
	var out api.Recorded
	for name, into := range map[string]*uint64{api.TraceRequestsTrailer: &out.Requests, api.TraceLostTrailer: &out.Lost} {
		if *into, err = strconv.ParseUint(response.Trailer.Get(name), 10, 64); err != nil {
			return out, fmt.Errorf("%w: %s does not say how many requests there were: %w", ErrCutOff, c.address, err)
		}
	}
	return out, nil
}

// failing remembers that it was the reader of a copy that failed.
type failing struct {
	r   io.Reader
	err error
}

func (f *failing) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		f.err = err
	}
	return n, err
}
