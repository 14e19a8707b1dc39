// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/names"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// apps serves the app "a" with the variants "good" and "fast", of which only those named run.
func apps(revision uint64, p *triton, running ...string) *router.Table {
	t := table(revision, nil, p)
	delete(t.Models, "m")
	app := &names.App{Variants: []names.Variant{{Model: "fast", Accuracy: .6, Latency: 10 * time.Second}, {Model: "good", Accuracy: .9, Latency: time.Minute}}}
	for _, name := range running {
		t.Models[name] = &router.Model{
			Name: name, Config: modelConfig(name), Versions: []string{"1"}, SLO: time.Minute, Batchable: true, Places: []router.Place{{Partition: t.Partitions[0].ID}},
		}
		for i := range app.Variants {
			if app.Variants[i].Model == name {
				app.Variants[i].State = names.Active
			}
		}
	}
	t.Names = map[string]*names.Name{"a": {Name: "a", App: app}}
	return t
}

// ask sends a request for the app with an accuracy and returns which variant served it.
func ask(ctx context.Context, t *testing.T, d *dispatch.Dispatcher, accuracy float64) (string, error) {
	t.Helper()
	resp, err := d.Infer(ctx, request(t, "id", 2, 7, func(m *tritonpb.ModelInferRequest) {
		m.ModelName = "a"
		m.Parameters = map[string]*tritonpb.InferParameter{"accuracy": {ParameterChoice: &tritonpb.InferParameter_DoubleParam{DoubleParam: accuracy}}}
	}))
	if err != nil {
		return "", err
	}
	defer resp.Free()
	require.Equal(t, "a", resp.Model)
	require.Equal(t, string(message("id", 2, 7).RawInputContents[0]), string(resp.Output("OUT").Data.Materialize()))
	served, ok := batch.FindParameter(resp.Parameters, names.ParameterVariant)
	require.True(t, ok, "the answer says who served it")
	name, _ := served.Text()
	return name, nil
}

func TestAnAppIsServedByAVariant(t *testing.T) {
	p := newTriton(t)
	var asked []string
	p.asked = func(_ context.Context, r *tritonpb.ModelInferRequest) {
		asked = append(asked, r.GetModelName())
		require.NotContains(t, r.GetParameters(), "accuracy")
	}
	d, seen := newDispatcher(t, dispatch.Options{}, apps(1, p, "fast", "good"))
	for accuracy, want := range map[float64]string{.5: "fast", .8: "good"} {
		got, err := ask(t.Context(), t, d, accuracy)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err := ask(t.Context(), t, d, .95)
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	require.ErrorContains(t, err, "there is 'fast' with accuracy 0.6 within 10s, 'good' with accuracy 0.9 within 1m0s")
	require.ElementsMatch(t, []string{"fast", "good"}, asked)
	require.Equal(t, map[dispatch.Result]int{dispatch.OK: 2, dispatch.Refused: 1}, seen.count(t))
	for _, o := range seen.outcomes {
		require.Equal(t, "a", o.Name)
	}
	require.Len(t, seen.asked, 2)
}

// TestAnInactiveVariantIsWaitedFor: Options.Wanted is called for its request, which waits for a table that has it, and
// is answered.
func TestAnInactiveVariantIsWaitedFor(t *testing.T) {
	p := newTriton(t)
	wanted := make(chan names.InactiveError, 1)
	d, seen := newDispatcher(t, dispatch.Options{Wanted: func(e names.InactiveError) error { wanted <- e; return nil }}, apps(1, p, "fast"))
	served := make(chan string, 1)
	go func() {
		name, err := ask(context.Background(), t, d, .8)
		served <- name
		if err != nil {
			served <- err.Error()
		}
	}()
	e := <-wanted
	require.Equal(t, "good", e.Model)
	require.Empty(t, served)
	n, _ := d.UnderWay()
	require.LessOrEqual(t, n, int64(1))
	require.NoError(t, d.Swap(t.Context(), apps(2, p, "fast", "good")))
	require.Equal(t, "good", <-served)
	require.Equal(t, .8, seen.asked[0].Wish.Accuracy)
	require.Empty(t, seen.asked[0].Model, "at first nothing served it")
}

// TestTablesWithoutTheVariant come and go while its request waits: the request is one, and its latency begins when it came.
func TestTablesWithoutTheVariant(t *testing.T) {
	p, now := newTriton(t), newMovableClock()
	wanted := make(chan names.InactiveError, 10)
	d, seen := newDispatcher(t, dispatch.Options{Clock: now, Wanted: func(e names.InactiveError) error { wanted <- e; return nil }}, apps(1, p, "fast"))
	served := make(chan error, 1)
	go func() { _, err := ask(context.Background(), t, d, .8); served <- err }()
	<-wanted
	for revision := range uint64(3) {
		require.NoError(t, d.Swap(t.Context(), apps(2+revision, p, "fast")))
		<-wanted
	}
	now.move(10 * time.Second)
	require.NoError(t, d.Swap(t.Context(), apps(9, p, "fast", "good")))
	require.NoError(t, <-served)
	require.Equal(t, map[dispatch.Result]int{dispatch.Cold: 1}, seen.count(t))
	require.GreaterOrEqual(t, seen.outcomes[0].Latency, 10*time.Second)
	require.GreaterOrEqual(t, seen.outcomes[0].Loading, 10*time.Second)
	require.Len(t, seen.asked, 2)
	require.Equal(t, []bool{false, true}, []bool{seen.asked[0].Again, seen.asked[1].Again})
}

// TestNobodyStartsAVariant: a request for it gets the error of Options.Wanted at once.
func TestNobodyStartsAVariant(t *testing.T) {
	p := newTriton(t)
	no := status.Error(codes.Unavailable, "nobody starts it")
	d, _ := newDispatcher(t, dispatch.Options{Clock: newMovableClock(), Wanted: func(names.InactiveError) error { return no }}, apps(1, p, "fast"))
	_, err := ask(t.Context(), t, d, .8)
	require.Equal(t, no, err)
	n, bytes := d.UnderWay()
	require.Zero(t, n+bytes)
}

// TestAVariantIsNotWaitedForBeyondTheTimeout of the request.
func TestAVariantIsNotWaitedForBeyondTheTimeout(t *testing.T) {
	p := newTriton(t)
	d, _ := newDispatcher(t, dispatch.Options{OutageWait: time.Hour}, apps(1, p, "fast"))
	_, err := d.Infer(t.Context(), request(t, "id", 1, 7, func(m *tritonpb.ModelInferRequest) {
		m.ModelName = "a"
		m.Parameters = map[string]*tritonpb.InferParameter{
			"accuracy": {ParameterChoice: &tritonpb.InferParameter_DoubleParam{DoubleParam: .8}},
			"timeout":  {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: 1000}},
		}
	}))
	requireCode(t, codes.Unavailable, err)
	require.ErrorContains(t, err, "Request timeout expired")
}

func TestAnInactiveVariantIsNotWaitedForForEver(t *testing.T) {
	p := newTriton(t)
	d, _ := newDispatcher(t, dispatch.Options{OutageWait: time.Millisecond}, apps(1, p, "fast"))
	_, err := ask(t.Context(), t, d, .8)
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorContains(t, err, "none was started in time")
}

// TestAVariantThatLeavesLosesNothing: requests for the app go to the variants in the table, while one after the other is added and removed.
func TestAVariantThatLeavesLosesNothing(t *testing.T) {
	p := newTriton(t)
	p.takes = time.Millisecond
	d, seen := newDispatcher(t, dispatch.Options{}, apps(1, p, "fast", "good"))
	results := make(chan error)
	const callers, each = 8, 40
	for range callers {
		go func() {
			var failed error
			for range each {
				if _, err := ask(context.Background(), t, d, .5); err != nil {
					failed = err
				}
			}
			results <- failed
		}()
	}
	stop := make(chan struct{})
	swapped := make(chan error, 1)
	go func() {
		for revision := uint64(2); ; revision++ {
			select {
			case <-stop:
				swapped <- nil
				return
			default:
			}
			running := [][]string{{"fast"}, {"good"}, {"fast", "good"}}[revision%3]
			if err := d.Swap(context.Background(), apps(revision, p, running...)); err != nil {
				swapped <- err
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	for range callers {
		require.NoError(t, <-results)
	}
	close(stop)
	require.NoError(t, <-swapped)
	require.Equal(t, map[dispatch.Result]int{dispatch.OK: callers * each}, seen.count(t))
}

// TestWhatAVariantLosesAfterItLeftRunsOnAnother: an execution is lost, and the model that it was of has left the table meanwhile.
func TestWhatAVariantLosesAfterItLeftRunsOnAnother(t *testing.T) {
	p := newTriton(t)
	p.hold, p.started = make(chan struct{}), make(chan string, 2)
	p.refuse = func(r *tritonpb.ModelInferRequest) error {
		if r.ModelName == "fast" {
			return errBroken
		}
		return nil
	}
	d, seen := newDispatcher(t, dispatch.Options{}, apps(1, p, "fast"))
	type answer struct {
		by  string
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		by, err := ask(t.Context(), t, d, .5)
		answered <- answer{by, err}
	}()
	<-p.started
	require.NoError(t, d.Swap(t.Context(), apps(2, p, "good")))
	close(p.hold)
	require.Equal(t, answer{by: "good"}, <-answered)
	require.Equal(t, 1, resultsInTime(seen.count(t))[dispatch.OK])
}

// TestAnAppOfDecoupledVariants: the answers on a stream are the app's, and the outcome too.
func TestAnAppOfDecoupledVariants(t *testing.T) {
	p := newTriton(t)
	routes := apps(1, p, "fast")
	decoupled(routes.Models["fast"])
	_, seen, client := streamed(t, dispatch.Options{}, routes)
	m := message("id", 1, 1)
	m.ModelName = "a"
	s := openStream(t.Context(), t, client, m)
	got, err := s.Recv()
	require.NoError(t, err)
	require.Equal(t, "a", got.InferResponse.ModelName)
	require.Equal(t, "1", got.InferResponse.ModelVersion)
	require.Len(t, got.InferResponse.Outputs, 1)
	require.Equal(t, "fast", got.InferResponse.Parameters["conch_variant"].GetStringParam())
	require.True(t, got.InferResponse.Parameters["triton_final_response"].GetBoolParam())
	require.Empty(t, lines(t, s))
	require.Equal(t, map[dispatch.Result]int{dispatch.OK: 1}, seen.count(t))
	require.Equal(t, "a", seen.outcomes[0].Name)
}
