// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// TestAStopFinishesWhatIsGenerated: a generate_stream and a generate that take longer than the stop of an idle conch, and no longer than limits.drain, come
// whole.
func TestAStopFinishesWhatIsGenerated(t *testing.T) {
	t.Parallel()
	dir := writeZoo(t, "alpha")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "many", "1"), 0o750))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "many", "1", "model.py"), []byte("# emulated\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "many", "config.pbtxt"), []byte(`backend: "python" max_batch_size: 0 model_transaction_policy { decoupled: true }
input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }, { name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] } ]
parameters { key: "conch_builtin" value { string_value: "decoupled" } }
`), 0o600))
	c := startConch(t, text(dir, t.TempDir(), ""))
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+c.address("http").String()+"/v2/models/many/generate_stream",
		strings.NewReader(`{"IN":[4,5],"DELAY":[0,2600]}`))
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	events := bufio.NewReader(answer.Body)
	first, err := events.ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, first, `"OUT":4`)

	generated := make(chan string, 1)
	go func() {
		code, answer := c.do("http", http.MethodPost, "/v2/models/many/generate", `{"IN":[6],"DELAY":[2600]}`)
		generated <- fmt.Sprint(code, " ", answer)
	}()
	require.Eventually(t, func() bool { n, _ := c.dispatcher.UnderWay(); return n == 2 }, 30*time.Second, time.Millisecond)

	stopped := make(chan struct{})
	go func() { defer close(stopped); c.stop() }()
	require.Eventually(t, c.dispatcher.Draining, 30*time.Second, time.Millisecond)
	require.Equal(t, codes.Unavailable, status.Code(c.infer(t.Context(), "alpha", 2)))
	rest, err := io.ReadAll(events)
	require.NoError(t, err, "the answer was cut off")
	require.Contains(t, string(rest), `"OUT":5`)
	require.NoError(t, answer.Body.Close())
	whole := <-generated
	require.Contains(t, whole, "200 ")
	require.Contains(t, whole, `"OUT":6`)
	<-stopped
	require.NotContains(t, c.log.String(), "cut off")
}

// TestAStopEndsOpenStreams: an open stream does not hold up the stop, whose limits.drain is a minute; it ends with the reason.
func TestAStopEndsOpenStreams(t *testing.T) {
	t.Parallel()
	c := startConch(t, text(writeZoo(t, "alpha"), t.TempDir(), ""))
	stream, err := c.client.Stub.ModelStreamInfer(t.Context())
	require.NoError(t, err)
	require.NoError(t, stream.Send(&tritonpb.ModelInferRequest{ModelName: "nobody", Id: "first"}))
	_, err = stream.Recv() // the stream has begun
	require.NoError(t, err)
	began := time.Now()
	c.stop()
	require.Less(t, time.Since(began), 45*time.Second)
	_, err = stream.Recv()
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorContains(t, err, "Server is exiting")
}
