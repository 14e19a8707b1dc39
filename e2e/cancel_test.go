// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// slowly serves model slow, whose executions take this long whatever their rows, on one real server.
func slowly(t *testing.T, takes time.Duration) *rig.Conch {
	t.Helper()
	dir := conformanceModels(t, "slow")
	file := filepath.Join(dir, "slow", "config.pbtxt")
	config, err := os.ReadFile(file)
	require.NoError(t, err)
	changed := strings.Replace(string(config), `string_value: "200"`, fmt.Sprintf("string_value: %q", strconv.FormatInt(takes.Milliseconds(), 10)), 1)
	require.NotEqual(t, string(config), changed)
	require.NoError(t, os.WriteFile(file, []byte(changed), 0o644))
	return serve(t, rig.ConchOptions{Repository: dir, GPUs: 1})
}

func slowRequest(id string, value byte) *tritonpb.ModelInferRequest {
	return &tritonpb.ModelInferRequest{
		ModelName: "slow", Id: id, RawInputContents: [][]byte{{value, 0, 128, 63}},
		Inputs: []*tritonpb.ModelInferRequest_InferInputTensor{rawInput("INPUT0", "FP32", 1, 1)},
	}
}

// slowHTTP is the same over HTTP, from the request line on.
func slowHTTP() string {
	body := `{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[1]}]}`
	return fmt.Sprintf("POST /v2/models/slow/infer HTTP/1.1\r\nHost: conch\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// Requests go away by deadline, cancel and disconnect, over both protocols, while they wait and while they run. What had not begun never
// runs, by the server's own count of rows; what shares an execution with those that went is answered; and the metrics say who went how.
func TestWhoIsGoneIsNotServed(t *testing.T) {
	c := slowly(t, time.Second)
	a, client := admin(t, c), triton(t, c)
	waiting := func(n int) {
		t.Helper()
		require.Eventually(t, func() bool {
			m, err := a.Model(t.Context(), "slow")
			return err == nil && m.Queued == n
		}, 20*time.Second, 5*time.Millisecond, "%d requests wait", n)
	}
	executed := func(since rig.Usage) rig.Counts {
		t.Helper()
		now, err := c.Usage(t.Context())
		require.NoError(t, err)
		return now.Since(since)["slow"]
	}
	usage := func() rig.Usage {
		t.Helper()
		u, err := c.Usage(t.Context())
		require.NoError(t, err)
		return u
	}
	type result struct {
		r   *tritonpb.ModelInferResponse
		err error
	}
	ask := func(ctx context.Context, client tritonpb.GRPCInferenceServiceClient, id string, value byte) chan result {
		out := make(chan result, 1)
		go func() {
			r, err := client.ModelInfer(ctx, slowRequest(id, value))
			out <- result{r, err}
		}()
		return out
	}
	// begin asks for a row and returns once it is out of conch's queue, where nothing else is: it runs.
	begin := func() chan result {
		t.Helper()
		rows := scrape(t, c).sum("conch_request_rows_total", "model=slow")
		busy := ask(t.Context(), client, "busy", 1)
		require.Eventually(t, func() bool {
			m, err := a.Model(t.Context(), "slow")
			return err == nil && m.Queued == 0 && scrape(t, c).sum("conch_request_rows_total", "model=slow") == rows+1
		}, 20*time.Second, 5*time.Millisecond, "an execution has begun")
		return busy
	}
	answered := func(got result, id string, value byte) {
		t.Helper()
		require.NoError(t, got.err)
		require.Equal(t, id, got.r.Id)
		require.Equal(t, []byte{value, 0, 128, 63}, got.r.RawOutputContents[0])
	}
	// requireExecuted is: this much was executed since then. One more request goes first: the server runs requests in turn, so that
	// its answer comes after whatever else was on the way, and counts them soon after it has answered.
	requireExecuted := func(since rig.Usage, executions, rows uint64, why string) {
		t.Helper()
		answered(<-ask(t.Context(), client, "next", 9), "next", 9)
		require.Eventually(t, func() bool { return executed(since).Executions > executions }, 30*time.Second, 5*time.Millisecond)
		got := executed(since)
		require.Equal(t, []uint64{executions + 1, rows + 1}, []uint64{got.Executions, got.Rows}, why)
	}
	gone := func(reason string) float64 {
		return scrape(t, c).sum("conch_cancelled_requests_total", "model=slow", "reason="+reason)
	}

	t.Run("while they wait", func(t *testing.T) {
		before := usage()
		busy := begin()
		ctx, cancel := context.WithCancel(t.Context())
		cancelled := ask(ctx, client, "cancelled", 2)
		short, end := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer end()
		late := ask(short, client, "late", 3)
		conn, err := grpc.NewClient(c.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		lost := ask(t.Context(), tritonpb.NewGRPCInferenceServiceClient(conn), "lost", 4)
		web, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", c.HTTP)
		require.NoError(t, err)
		_, err = web.Write([]byte(slowHTTP()))
		require.NoError(t, err)
		stays := ask(t.Context(), client, "stays", 5)
		waiting(5)
		cancel()
		require.NoError(t, conn.Close())
		require.NoError(t, web.Close())
		require.Equal(t, codes.Canceled, status.Code((<-cancelled).err))
		require.Equal(t, codes.DeadlineExceeded, status.Code((<-late).err))
		require.Error(t, (<-lost).err)
		waiting(1)
		require.EqualValues(t, 0, executed(before).Rows, "the first one still runs: what follows was decided while they waited")
		answered(<-busy, "busy", 1)
		answered(<-stays, "stays", 5)
		requireExecuted(before, 2, 2, "only those who stayed")
		require.EqualValues(t, 1, gone("cancel"))
		require.EqualValues(t, 1, gone("deadline"))
		require.EqualValues(t, 2, gone("disconnect"))
		require.EqualValues(t, 4, scrape(t, c).sum("conch_requests_total", "model=slow", "result=cancelled"))
	})

	t.Run("while they run", func(t *testing.T) {
		before := usage()
		busy := begin()
		ctx, cancel := context.WithCancel(t.Context())
		leaves := ask(ctx, client, "leaves", 2)
		web, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", c.HTTP)
		require.NoError(t, err)
		_, err = web.Write([]byte(slowHTTP()))
		require.NoError(t, err)
		stays := ask(t.Context(), client, "stays", 3)
		waiting(3)
		answered(<-busy, "busy", 1)
		waiting(0) // all three run now
		cancel()
		require.NoError(t, web.Close())
		require.Equal(t, codes.Canceled, status.Code((<-leaves).err), "who leaves does not wait for the execution")
		answered(<-stays, "stays", 3)
		requireExecuted(before, 2, 4, "the execution that others share went on")
		require.EqualValues(t, 2, gone("cancel"))
		require.EqualValues(t, 3, gone("disconnect"))
	})

	t.Run("while they are sent", func(t *testing.T) {
		before, all := usage(), scrape(t, c).sum("conch_requests_total", "model=slow")
		whole := slowHTTP()
		for _, part := range []int{20, len(whole) / 2, len(whole) - 30, len(whole) - 1} {
			web, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", c.HTTP)
			require.NoError(t, err)
			_, err = web.Write([]byte(whole[:part]))
			require.NoError(t, err)
			require.NoError(t, web.Close())
		}
		requireExecuted(before, 0, 0, "nothing of what was not sent whole")
		require.EqualValues(t, all+1, scrape(t, c).sum("conch_requests_total", "model=slow"), "what was not sent whole never was a request")
	})

	t.Run("timeout parameter", func(t *testing.T) {
		// It brings the target nearer and, with late: serve, gives nothing up.
		r := slowRequest("hurried", 1)
		r.Parameters = map[string]*tritonpb.InferParameter{"timeout": {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: 1000}}}
		lateBefore := scrape(t, c).sum("conch_requests_total", "model=slow", "result=late")
		got, err := client.ModelInfer(t.Context(), r)
		answered(result{got, err}, "hurried", 1)
		require.EqualValues(t, lateBefore+1, scrape(t, c).sum("conch_requests_total", "model=slow", "result=late"))
	})
	http.DefaultClient.CloseIdleConnections()
}
