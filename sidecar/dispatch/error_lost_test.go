// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/names"
)

// TestAnErrorThatTheServerLost is a failure on a stream and over HTTP, where Triton gives the error; to ModelInfer Triton answers with an
// empty message. The request is not executed again.
func TestAnErrorThatTheServerLost(t *testing.T) {
	p := newTriton(t)
	p.loses = func(*tritonpb.ModelInferRequest) bool { return true }
	routes := table(1, nil, p)
	routes.Names = map[string]*names.Name{"app": {Name: "app", App: &names.App{Variants: []names.Variant{{Model: "m", State: names.Active}}}}}
	d, seen := newDispatcher(t, dispatch.Options{}, routes)
	grpcAddress, httpAddress := fronts(t, d, routes)
	client := tritonpb.NewGRPCInferenceServiceClient(dialTo(t, grpcAddress))

	text := status.Convert(batch.ErrCleared).Message()
	lost := "|m|true|" + text
	require.Equal(t, []string{"queued" + lost, "aside" + lost}, lines(t, openStream(t.Context(), t, client, message("queued", 1, 1), aside("aside"))))
	code, body := postTo(t, http.DefaultClient, "http://"+httpAddress+"/v2/models/m/infer", `{"inputs":[{"name":"IN","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}`)
	require.Equal(t, http.StatusInternalServerError, code)
	require.JSONEq(t, fmt.Sprintf(`{"error":%q}`, text), body)
	answer, err := client.ModelInfer(t.Context(), message("unary", 1, 1))
	require.NoError(t, err)
	require.Zero(t, proto.Size(answer))

	byApp := message("by an app", 1, 1)
	byApp.ModelName = "app"
	answer, err = client.ModelInfer(t.Context(), byApp)
	require.NoError(t, err)
	require.Zero(t, proto.Size(answer), "nothing is added to an empty message: %v", answer)

	require.Equal(t, []int{1, 1, 1, 1, 1}, p.executions())
	require.Equal(t, map[dispatch.Result]int{dispatch.Failed: 5}, seen.count(t))
	require.NotEmpty(t, seen.executions)
	for _, e := range seen.executions {
		require.Error(t, e.Err, "no profile is learnt from how long it takes to fail")
	}
}

// TestAnErrorThatTheServerLostIsOfOneRequest: after such an answer to a batch, each request runs on its own, as after an error.
func TestAnErrorThatTheServerLostIsOfOneRequest(t *testing.T) {
	p := newTriton(t)
	p.hold, p.started = make(chan struct{}), make(chan string, 10)
	p.loses = func(r *tritonpb.ModelInferRequest) bool { return r.Id == "bad" || r.Inputs[0].Shape[0] > 1 }
	d, seen, client := streamed(t, dispatch.Options{}, table(1, nil, p))
	s := openStream(t.Context(), t, client, message("first", 1, 1), message("good", 1, 1), message("bad", 1, 1))
	<-p.started
	require.Eventually(t, func() bool { c, _ := d.Counts("m"); return c.Waiting == 2 }, 30*time.Second, time.Millisecond)
	close(p.hold)
	require.Equal(t, []string{"first|m|true|", "good|m|true|", "bad|m|true|" + status.Convert(batch.ErrCleared).Message()}, lines(t, s))
	require.Equal(t, []int{1, 2, 1, 1}, p.executions())
	require.Equal(t, map[dispatch.Result]int{dispatch.OK: 2, dispatch.Failed: 1}, resultsInTime(seen.count(t)))
	require.Len(t, seen.executions, 4)
	for i, failed := range []bool{false, true, false, true} {
		require.Equal(t, failed, errors.Is(seen.executions[i].Err, batch.ErrCleared), "execution %d", i)
	}
}
