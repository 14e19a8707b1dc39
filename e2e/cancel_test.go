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
	"sync"
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

// heldModel is an identity. An execution takes the first file of a directory, if there is one, says so, and ends once the file is gone.
const heldModel = `import os
import time

import triton_python_backend_utils as pb

DIR = "HOLDS"


class TritonPythonModel:
    def execute(self, requests):
        holds = sorted(name for name in os.listdir(DIR) if not name.endswith(".taken"))
        if holds:
            hold = os.path.join(DIR, holds[0])
            open(hold + ".taken", "w").close()
            while os.path.exists(hold):
                time.sleep(0.001)
        return [pb.InferenceResponse([pb.Tensor("OUTPUT0", pb.get_input_tensor_by_name(r, "INPUT0").as_numpy())]) for r in requests]
`

// holds keep executions of model slow from ending.
type holds struct {
	t    *testing.T
	dir  string
	made int
}

// hold is for the next execution that begins. Taken waits until one has, release lets it end.
func (h *holds) hold() (taken, release func()) {
	h.made++
	file := filepath.Join(h.dir, strconv.Itoa(h.made))
	require.Less(h.t, h.made, 10, "names are sorted")
	require.NoError(h.t, os.WriteFile(file, nil, 0o600))
	taken = func() {
		h.t.Helper()
		require.Eventually(h.t, func() bool { _, err := os.Stat(file + ".taken"); return err == nil }, 30*time.Second, time.Millisecond, "an execution has begun")
	}
	release = sync.OnceFunc(func() { require.NoError(h.t, os.Remove(file)) })
	h.t.Cleanup(release)
	return taken, release
}

// held serves model slow, whose executions end when the test says so, on one real server.
func held(t *testing.T) (*rig.Conch, *holds) {
	t.Helper()
	dir, h := conformanceModels(t, "slow"), &holds{t: t, dir: t.TempDir()}
	write(t, dir, "slow/1/model.py", holding(h))
	return serve(t, rig.ConchOptions{Repository: dir, GPUs: 1}), h
}

// holding is the code of a model whose executions h holds.
func holding(h *holds) string { return strings.Replace(heldModel, "HOLDS", h.dir, 1) }

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
// runs, by the server's own count of rows; requests that share an execution with cancelled ones are answered; and the metrics count each kind.
func TestWhoIsGoneIsNotServed(t *testing.T) {
	t.Parallel()
	c, held := held(t)
	a, client := admin(t, c), triton(t, c)
	waiting := func(n int) {
		t.Helper()
		require.Eventually(t, func() bool {
			m, err := a.Model(t.Context(), "slow")
			return err == nil && m.Queued == n
		}, 30*time.Second, 5*time.Millisecond, "%d requests wait", n)
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
	// begin asks for a row and returns once it runs, until it is released.
	begin := func() (busy chan result, release func()) {
		t.Helper()
		taken, release := held.hold()
		busy = ask(t.Context(), client, "busy", 1)
		taken()
		return busy, release
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
	gone := func(reasons ...string) float64 {
		return scrape(t, c).sum("conch_cancelled_requests_total", append(reasons, "model=slow")...)
	}
	// requireGone waits: conch hears of a lost connection a moment after it is closed.
	requireGone := func(cancelled, disconnected float64) {
		t.Helper()
		require.Eventually(t, func() bool {
			return gone("reason=cancel") == cancelled && gone("reason=disconnect") == disconnected
		}, 30*time.Second, 5*time.Millisecond, "%v cancelled and %v disconnected", cancelled, disconnected)
	}

	t.Run("while they wait", func(t *testing.T) {
		before := usage()
		busy, release := begin()
		ctx, cancel := context.WithCancel(t.Context())
		cancelled := ask(ctx, client, "cancelled", 2)
		conn, err := grpc.NewClient(c.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		lost := ask(t.Context(), tritonpb.NewGRPCInferenceServiceClient(conn), "lost", 4)
		web, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", c.HTTP)
		require.NoError(t, err)
		_, err = web.Write([]byte(slowHTTP()))
		require.NoError(t, err)
		stays := ask(t.Context(), client, "stays", 5)
		waiting(4)
		cancel()
		require.NoError(t, conn.Close())
		require.NoError(t, web.Close())
		require.Equal(t, codes.Canceled, status.Code((<-cancelled).err))
		require.Error(t, (<-lost).err)
		waiting(1)
		requireGone(1, 2)
		// On a busy machine a short deadline passes before the request has come to conch, or seems to be a cancel.
		for patience := time.Second / 4; gone("reason=deadline") == 0; patience *= 2 {
			require.Less(t, patience, time.Minute, "no deadline is seen")
			short, end := context.WithTimeout(t.Context(), patience)
			require.Equal(t, codes.DeadlineExceeded, status.Code((<-ask(short, client, "late", 3)).err))
			end()
		}
		waiting(1)
		require.EqualValues(t, 0, executed(before).Rows, "the first one still runs: what follows was decided while they waited")
		release()
		answered(<-busy, "busy", 1)
		answered(<-stays, "stays", 5)
		requireExecuted(before, 2, 2, "only those who stayed")
		require.EqualValues(t, 2, gone("reason=disconnect"))
		require.Equal(t, gone(), scrape(t, c).sum("conch_requests_total", "model=slow", "result=cancelled"))
	})

	t.Run("while they run", func(t *testing.T) {
		before, cancelled := usage(), gone("reason=cancel")
		busy, release := begin()
		ctx, cancel := context.WithCancel(t.Context())
		leaves := ask(ctx, client, "leaves", 2)
		web, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", c.HTTP)
		require.NoError(t, err)
		_, err = web.Write([]byte(slowHTTP()))
		require.NoError(t, err)
		stays := ask(t.Context(), client, "stays", 3)
		waiting(3)
		taken, releaseAll := held.hold()
		release()
		answered(<-busy, "busy", 1)
		taken()
		waiting(0) // all three run now
		cancel()
		require.NoError(t, web.Close())
		require.Equal(t, codes.Canceled, status.Code((<-leaves).err), "who leaves does not wait for the execution")
		requireGone(cancelled+1, 3)
		releaseAll()
		answered(<-stays, "stays", 3)
		requireExecuted(before, 2, 4, "the execution that others share went on")
	})

	t.Run("while they are sent", func(t *testing.T) {
		before, all, left := usage(), scrape(t, c).sum("conch_requests_total", "model=slow"), gone()
		whole := slowHTTP()
		head := strings.Index(whole, "\r\n\r\n") + len("\r\n\r\n")
		for _, part := range []int{20, head, len(whole) - 30, len(whole) - 1} {
			web, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", c.HTTP)
			require.NoError(t, err)
			_, err = web.Write([]byte(whole[:part]))
			require.NoError(t, err)
			require.NoError(t, web.Close())
		}
		requireExecuted(before, 0, 0, "nothing of what was not sent whole")
		require.Eventually(t, func() bool {
			return scrape(t, c).sum("conch_requests_total", "model=slow") == all+1+3 && gone() == left+3
		}, 30*time.Second, 5*time.Millisecond, "whose head came, it is counted as one that its caller left")
	})

	t.Run("timeout parameter", func(t *testing.T) {
		// It brings the target nearer and, with late: serve, gives nothing up.
		r := slowRequest("hurried", 1)
		r.Parameters = map[string]*tritonpb.InferParameter{"timeout": {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: 1000}}}
		lateBefore := scrape(t, c).sum("conch_requests_total", "model=slow", "result=late")
		taken, release := held.hold()
		hurried := make(chan result, 1)
		go func() {
			got, err := client.ModelInfer(t.Context(), r)
			hurried <- result{got, err}
		}()
		taken()
		time.Sleep(5 * time.Millisecond)
		release()
		answered(<-hurried, "hurried", 1)
		require.EqualValues(t, lateBefore+1, scrape(t, c).sum("conch_requests_total", "model=slow", "result=late"))
	})
	http.DefaultClient.CloseIdleConnections()
}
