// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// members of the tests' merge group, by their index in it. The first is m, so that the helpers' requests are its own.
var members = []string{"m", "n"}

// of makes a request one of the member.
func of(member int) func(*tritonpb.ModelInferRequest) {
	return func(r *tritonpb.ModelInferRequest) { r.ModelName = members[member] }
}

// merged is a table in which the members are rows of group g; apart one in which each serves itself.
func merged(revision uint64, parts ...*triton) *router.Table {
	t := apart(revision, parts...)
	group := *t.Models["m"]
	group.Name, group.Internal, group.Config = "g", true, modelConfig("g")
	group.Config.Input = append(group.Config.Input, &tritonpb.ModelInput{Name: "whose", DataType: tritonpb.DataType_TYPE_INT32, Dims: []int64{1}})
	group.Config.Output = append(group.Config.Output, &tritonpb.ModelOutput{Name: "n.OUT", DataType: tritonpb.DataType_TYPE_FP32, Dims: []int64{4}})
	t.Models["g"] = &group
	for i, name := range members {
		t.Models[name].Membership = &batch.Membership{
			Member: name, Version: t.Models[name].Versions[0], Group: "g", Input: "whose", Index: int32(i),
			Outputs: map[string]string{"OUT": []string{"OUT", "n.OUT"}[i]}, Produced: []string{"OUT"},
		}
	}
	return t
}

func apart(revision uint64, parts ...*triton) *router.Table {
	t := table(revision, nil, parts...)
	n := *t.Models["m"]
	n.Name, n.Config, n.Versions = "n", modelConfig("n"), []string{"3"}
	t.Models["n"] = &n
	return t
}

// whose returns the members of a group's request, row by row.
func whose(r *tritonpb.ModelInferRequest) (all []uint32) {
	for i, in := range r.Inputs {
		for at := 0; in.Name == "whose" && at < len(r.RawInputContents[i]); at += 4 {
			all = append(all, binary.LittleEndian.Uint32(r.RawInputContents[i][at:]))
		}
	}
	return all
}

// TestAServerWithAMergeGroupIsFoundAgain, which has the group loaded and none of its members.
func TestAServerWithAMergeGroupIsFoundAgain(t *testing.T) {
	p := newTriton(t)
	p.unloaded = members
	p.hold, p.started = make(chan struct{}), make(chan string, 10)
	d, _ := newDispatcher(t, dispatch.Options{OutageWait: 10 * time.Second}, merged(1, p))
	answered := make(chan error, 1)
	go func() { answered <- infer(t.Context(), t, d, 1, 1, of(0)) }()
	<-p.started
	p.set(func() { p.hold = nil })
	p.kill()
	p.restart()
	require.NoError(t, <-answered)
	require.NoError(t, infer(t.Context(), t, d, 2, 1, of(1)))
	require.True(t, d.Partitions()[0].Up)
}

func TestMembersOfAMergeGroupShareExecutions(t *testing.T) {
	p := newTriton(t)
	p.hold, p.started = make(chan struct{}), make(chan string, 10)
	asked := make(chan *tritonpb.ModelInferRequest, 10)
	p.asked = func(_ context.Context, r *tritonpb.ModelInferRequest) { asked <- r }
	d, seen := newDispatcher(t, dispatch.Options{}, merged(1, p))
	results := make(chan error, 10)
	send := func(seed uint32, rows, member int) {
		go func() { results <- infer(t.Context(), t, d, seed, rows, of(member)) }()
	}
	send(1, 1, 0)
	<-p.started
	send(2, 1, 0)
	send(3, 2, 1)
	send(4, 1, 1)
	require.Eventually(t, func() bool {
		m, _ := d.Counts("m")
		n, _ := d.Counts("n")
		return m.Waiting == 1 && n.Waiting == 2
	}, 30*time.Second, time.Millisecond, "each member knows what waits for it")
	close(p.hold)
	for range 4 {
		require.NoError(t, <-results)
	}
	require.Equal(t, []int{1, 4}, p.executions(), "requests of all members run together")
	alone, together := <-asked, <-asked
	require.Equal(t, "g", alone.ModelName)
	require.Equal(t, []uint32{0}, whose(alone))
	rows := map[uint32]uint32{} // by the request's seed
	for i, member := range whose(together) {
		rows[binary.LittleEndian.Uint32(together.RawInputContents[0][16*i:])] = member
	}
	require.Equal(t, map[uint32]uint32{2: 0, 3: 1, 4: 1}, rows, "whose each row is")
	var outputs []string
	for _, o := range together.Outputs {
		outputs = append(outputs, o.Name)
	}
	require.ElementsMatch(t, []string{"OUT", "n.OUT"}, outputs)

	require.NoError(t, d.Close())
	require.Equal(t, map[dispatch.Result]int{dispatch.OK: 4}, resultsInTime(seen.count(t)))
	m, n := d.VersionCounts("m")[0], d.VersionCounts("n")[0]
	require.Equal(t, [2]string{"1", "3"}, [2]string{m.Version, n.Version})
	require.Equal(t, [2]uint64{2, 2}, [2]uint64{m.Success, n.Success}, "statistics are the members'")
	require.Equal(t, map[int]uint64{1: 1, 4: 1}, m.Ran)
	require.Equal(t, map[int]uint64{4: 2}, n.Ran)
	names := map[string]bool{}
	for _, s := range d.Series() {
		names[s.Model] = true
	}
	require.Equal(t, []string{"m", "n"}, slices.Sorted(maps.Keys(names)))
	for _, e := range seen.executions {
		require.Equal(t, "g", e.Model, "profiles are the group's")
	}
}

func TestAnswersAreTheMembers(t *testing.T) {
	p := newTriton(t)
	d, _ := newDispatcher(t, dispatch.Options{}, merged(1, p))
	d.SetProfile(linear(time.Millisecond, 5*time.Millisecond))
	for name, change := range map[string]func(*tritonpb.ModelInferRequest){
		"queued": func(*tritonpb.ModelInferRequest) {},
		// A parameter that Triton does not know keeps a request out of batches.
		"passed through": func(r *tritonpb.ModelInferRequest) {
			r.Parameters = map[string]*tritonpb.InferParameter{"sequence_id": {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: 0}}}
		},
		"typed": func(r *tritonpb.ModelInferRequest) {
			r.Inputs[0].Contents = &tritonpb.InferTensorContents{Fp32Contents: make([]float32, 4)}
			r.RawInputContents = nil
		},
		"one output": func(r *tritonpb.ModelInferRequest) {
			r.Outputs = []*tritonpb.ModelInferRequest_InferRequestedOutputTensor{{Name: "OUT"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			resp, err := d.Infer(t.Context(), request(t, "id", 1, 0, func(r *tritonpb.ModelInferRequest) { of(1)(r); change(r) }))
			require.NoError(t, err)
			defer resp.Free()
			require.Equal(t, [3]string{"n", "3", "id"}, [3]string{resp.Model, resp.Version, resp.ID})
			require.Len(t, resp.Outputs, 1)
			require.Equal(t, "OUT", resp.Outputs[0].Name)
			require.Empty(t, resp.Wire, "what is sent is what was changed")
		})
	}
}

func TestErrorsAreTheMembers(t *testing.T) {
	p := newTriton(t)
	p.refuse = func(r *tritonpb.ModelInferRequest) error {
		return status.Errorf(codes.InvalidArgument, "expected 3 inputs but got 2 inputs for model '%s', allowed are IN, whose", r.ModelName)
	}
	d, seen := newDispatcher(t, dispatch.Options{}, merged(1, p))
	for name, change := range map[string]func(*tritonpb.ModelInferRequest){
		"queued":         func(*tritonpb.ModelInferRequest) {},
		"passed through": func(r *tritonpb.ModelInferRequest) { r.Inputs[0].Name = "other" },
	} {
		t.Run(name, func(t *testing.T) {
			_, err := d.Infer(t.Context(), request(t, "id", 1, 0, func(r *tritonpb.ModelInferRequest) { of(1)(r); change(r) }))
			requireCode(t, codes.InvalidArgument, err)
			require.Equal(t, "expected 2 inputs but got 1 inputs for model 'n', allowed are IN", status.Convert(err).Message())
		})
	}
	require.Equal(t, 2, seen.arrivals())
	_, err := d.Infer(t.Context(), request(t, "id", 1, 0, func(r *tritonpb.ModelInferRequest) { of(1)(r); r.ModelVersion = "1" }))
	requireCode(t, codes.NotFound, err)
	require.Equal(t, "Request for unknown model: 'n' version 1 is not found", status.Convert(err).Message(), "the group has a version 1, the member has not")
	_, err = d.Infer(t.Context(), request(t, "id", 1, 0, func(r *tritonpb.ModelInferRequest) { r.ModelName = "g" }))
	requireCode(t, codes.NotFound, err)
	require.Equal(t, "Request for unknown model: 'g' is not found", status.Convert(err).Message())
}

// Requests that wait when members are merged, or are not any more, move with their model.
func TestMergingMovesWhatWaits(t *testing.T) {
	tables := map[string]func(uint64, ...*triton) *router.Table{"apart": apart, "merged": merged}
	for _, test := range [][2]string{{"apart", "merged"}, {"merged", "apart"}} {
		t.Run(test[0]+" to "+test[1], func(t *testing.T) {
			p := newTriton(t)
			p.hold, p.started = make(chan struct{}), make(chan string, 20)
			models := make(chan string, 20)
			p.asked = func(_ context.Context, r *tritonpb.ModelInferRequest) { models <- r.ModelName }
			d, seen := newDispatcher(t, dispatch.Options{}, tables[test[0]](1, p))
			results := make(chan error, 20)
			go func() { results <- infer(t.Context(), t, d, 0, 1, nil) }()
			<-p.started
			<-models
			for i := range 6 {
				go func() { results <- infer(t.Context(), t, d, uint32(1+i), 1, of(i%2)) }() //nolint:gosec // small
			}
			waiting := func() int {
				m, _ := d.Counts("m")
				n, _ := d.Counts("n")
				return m.Waiting + n.Waiting
			}
			require.Eventually(t, func() bool { return waiting() == 6 }, 30*time.Second, time.Millisecond)
			gone, leave := context.WithCancel(t.Context())
			left := make(chan error, 1)
			go func() { left <- infer(gone, t, d, 9, 1, of(1)) }()
			require.Eventually(t, func() bool { return waiting() == 7 }, 30*time.Second, time.Millisecond)
			require.NoError(t, d.Swap(t.Context(), tables[test[1]](2, p)))
			require.Eventually(t, func() bool { return waiting() == 7 }, 30*time.Second, time.Millisecond, "they wait in their new queues")
			leave()
			requireCode(t, codes.Canceled, <-left)
			require.Equal(t, 6, waiting())
			close(p.hold)
			for range 7 {
				require.NoError(t, <-results)
			}
			require.NoError(t, d.Close())
			require.Equal(t, 0, waiting())
			require.Equal(t, map[dispatch.Result]int{dispatch.OK: 7, dispatch.Cancelled: 1}, resultsInTime(seen.count(t)))
			close(models)
			for model := range models {
				require.Equal(t, test[1] == "merged", model == "g", "it ran by the new table")
			}
		})
	}
}

// A request is answered whichever table it was routed by.
func TestMergingBackAndForthUnderLoad(t *testing.T) {
	p, q := newTriton(t), newTriton(t)
	d, seen := newDispatcher(t, dispatch.Options{}, apart(1, p, q))
	var stop atomic.Bool
	errs := make(chan []error, 1)
	go func() {
		errs <- atOnce(8, func(i int) error {
			for n := uint32(0); !stop.Load(); n++ {
				if err := infer(t.Context(), t, d, n, 1+i%2, of(i%2)); err != nil {
					return fmt.Errorf("request %d: %w", n, err)
				}
			}
			return nil
		})
	}()
	for revision := range uint64(40) {
		next := apart
		if revision%2 == 0 {
			next = merged
		}
		before := seen.arrivals()
		require.NoError(t, d.Swap(t.Context(), next(2+revision, p, q)))
		if revision%2 == 1 { // the group is gone from the table: it can be unloaded once it is idle
			for _, part := range []*triton{p, q} {
				<-d.Drained("p"+part.address, "g")
			}
		}
		require.Eventually(t, func() bool { return seen.arrivals() > before+8 }, 30*time.Second, time.Millisecond)
	}
	stop.Store(true)
	for _, err := range <-errs {
		require.NoError(t, err)
	}
}

// TestWhatIsProxiedNeedsAServerThatHasTheModel: no server has a merged model or an app under its name, and a merge group is not for clients.
func TestWhatIsProxiedNeedsAServerThatHasTheModel(t *testing.T) {
	p := newTriton(t)
	routes := merged(1, p)
	routes.Names = apps(1, p).Names
	d, _ := newDispatcher(t, dispatch.Options{}, routes)
	for model, want := range map[string]error{
		"n": status.Error(codes.Unimplemented, "model 'n' runs merged with others: of the requests for it Conch serves those of the inference protocol (infer) only"),
		"a": status.Error(codes.Unimplemented, "'a' is served by other models: of the requests for it Conch serves those of the inference protocol (infer) only"),
		"g": status.Error(codes.NotFound, "Request for unknown model: 'g' is not found"),
	} {
		_, _, err := d.Pick(t.Context(), model)
		require.Equal(t, want, err)
	}
	require.NoError(t, d.Swap(t.Context(), apart(2, p)))
	_, done, err := d.Pick(t.Context(), "n")
	require.NoError(t, err)
	done(nil)
	<-d.Drained("p"+p.address, "n")
}
