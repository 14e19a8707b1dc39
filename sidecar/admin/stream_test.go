// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/sidecar/admin/api"
)

// talkative is a conch whose orders and recordings always have something to say.
type talkative struct {
	stub
	ended chan error
}

func (c *talkative) Import(ctx context.Context, _ api.ImportRequest, progress func(api.ImportProgress)) (api.RepositoryRevision, error) {
	for ctx.Err() == nil {
		progress(api.ImportProgress{Model: "a"})
	}
	c.ended <- ctx.Err()
	return api.RepositoryRevision{}, ctx.Err()
}

func (c *talkative) Record(ctx context.Context, w io.Writer) (api.Recorded, error) {
	var err error
	for err == nil && ctx.Err() == nil {
		_, err = w.Write(make([]byte, 64<<10))
	}
	c.ended <- err
	return api.Recorded{}, err
}

// A caller that is stopped, and takes nothing more, holds up no import, behind which every order waits, and no recording, of which there is one at a time.
func TestACallerThatTakesNothingHoldsUpNothing(t *testing.T) {
	for name, request := range map[string]string{
		"an import":   "POST /v1/repository/import HTTP/1.1\r\nAccept: " + api.LinesType + "\r\nContent-Length: 0",
		"a recording": "GET /v1/trace?for=24h HTTP/1.1",
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				conch := &talkative{ended: make(chan error, 1)}
				openAPI(t, t.Context(), conch, hub(&seen{}))(request)
				began := time.Now()
				synctest.Wait()
				require.Empty(t, conch.ended, "it waits for the caller")
				require.Error(t, <-conch.ended)
				require.Equal(t, time.Minute, time.Since(began))
			})
		})
	}
}
