// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/admin/api"
)

// tensor asks a model of e2e/models with one row whose first element is given.
func tensor(model string, first float32) *tritonpb.ModelInferRequest {
	values := make([]float32, 16)
	values[0] = first
	return &tritonpb.ModelInferRequest{ModelName: model, Inputs: []*tritonpb.ModelInferRequest_InferInputTensor{{
		Name: "INPUT", Datatype: "FP32", Shape: []int64{1, 16}, Contents: &tritonpb.InferTensorContents{Fp32Contents: values},
	}}}
}

func firstOutput(r *tritonpb.ModelInferResponse) float32 {
	if len(r.GetRawOutputContents()) == 0 {
		return 0
	}
	return floats(r.RawOutputContents[0])[0]
}

// One value of one caller makes the model raise for the whole batch, and some callers send what Triton refuses before it runs. Only these
// callers get an error.
func TestBadTensorFailsItsCallerAlone(t *testing.T) {
	t.Parallel()
	c := start(t, 1, nil, "fragile")
	triton := triton(t, c)
	before := sharedExecutions(t, triton, "fragile")
	// raw is a request with a tensor as it lies in memory.
	raw := func(datatype string, bytes int, shape ...int64) *tritonpb.ModelInferRequest {
		return &tritonpb.ModelInferRequest{ModelName: "fragile", RawInputContents: [][]byte{make([]byte, bytes)},
			Inputs: []*tritonpb.ModelInferRequest_InferInputTensor{{Name: "INPUT", Datatype: datatype, Shape: shape}}}
	}
	renamed := tensor("fragile", 1)
	renamed.Inputs[0].Name = "NOBODY"
	const caught = "negative input of a caller"
	bad := map[int]struct {
		request *tritonpb.ModelInferRequest
		code    codes.Code
		text    string
	}{
		3:  {tensor("fragile", -1), codes.Internal, caught},
		6:  {raw("FP32", 60, 1, 15), codes.InvalidArgument, "unexpected shape for input 'INPUT'"},
		9:  {raw("INT32", 64, 1, 16), codes.InvalidArgument, "data-type is 'INT32', but model 'fragile' expects 'FP32'"},
		12: {raw("FP32", 63, 1, 16), codes.InvalidArgument, "byte size"},
		15: {raw("FP32", 128, 1, 16), codes.InvalidArgument, "byte size"},
		18: {raw("FP32", 64, 17, 16), codes.InvalidArgument, "batch-size must be <= 16"},
		21: {renamed, codes.InvalidArgument, "unexpected inference input 'NOBODY'"},
		24: {tensor("fragile", -2), codes.Internal, caught},
	}
	inCompany := func() bool { return sharedExecutions(t, triton, "fragile") > before }
	for round := 0; round < 5 || round < 50 && !inCompany(); round++ {
		var wg sync.WaitGroup
		for i := range 32 {
			wg.Go(func() {
				if b, spoilt := bad[i]; spoilt {
					_, err := triton.ModelInfer(t.Context(), b.request)
					assert.Equal(t, b.code, status.Code(err), "round %d, caller %d: %v", round, i, err)
					assert.ErrorContains(t, err, b.text, "round %d, caller %d", round, i)
					return
				}
				r, err := triton.ModelInfer(t.Context(), tensor("fragile", float32(i)))
				if assert.NoError(t, err, "round %d, caller %d", round, i) {
					assert.InDelta(t, 2*float32(i)+1, firstOutput(r), 0)
				}
			})
		}
		wg.Wait()
	}
	require.True(t, inCompany(), "the bad ones were in company")
}

// Both servers are killed under load, one after the other: what runs there is retried on the other one, and the first has to serve alone
// once it is back.
func TestKilledServerIsBackAndNobodyNotices(t *testing.T) {
	t.Parallel()
	c := start(t, 2, nil, "emulated")
	a := admin(t, c)
	all := partitions(t, a)
	require.Len(t, all, 2)
	since := lastEvent(t, a)
	result := underLoad(t, c, 60, func() {
		for _, victim := range all {
			old := serverOf(t, c, victim.ID)
			release := holdEmulation(t, c, len(all))
			require.Eventually(t, func() bool {
				m, err := a.Model(t.Context(), "emulated")
				return err == nil && m.Queued > 16
			}, time.Minute, 5*time.Millisecond, "more waits than a server takes at once, as both are at work")
			kill(t, old)
			release()
			require.EventuallyWithT(t, func(collect *assert.CollectT) {
				for _, p := range partitions(t, a) {
					assert.True(collect, p.Up, p.Reason)
					assert.Equal(collect, []string{"emulated"}, p.Models)
				}
				events := strings.Join(eventKinds(t, a, since), "\n")
				assert.Contains(collect, events, "partition_down: partition "+victim.ID+" is down: tritonserver exited: signal: killed")
				assert.Contains(collect, events, "partition_up: partition "+victim.ID+" is up again")
			}, 2*time.Minute, 50*time.Millisecond)
			require.NotEqual(t, old, serverOf(t, c, victim.ID))
		}
	})
	requireAllAnswered(t, result)
	m := scrape(t, c)
	require.Positive(t, m.sum("conch_retried_requests_total", "model=emulated"), "the servers were killed at work")
	require.Zero(t, m.sum("conch_requests_total", "model=emulated", "result=failed"))
	// A partition that the request path has lost serves again once it has answered a probe, up to a second after its server is up.
	require.Eventually(t, func() bool { return scrape(t, c).sum("conch_partition_up") == 2 }, 30*time.Second, 10*time.Millisecond)
}

// moodySettings makes the test binary the policy "moody" of conch.yaml.
func moodySettings(t *testing.T) map[string]any {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	return map[string]any{"policy": map[string]any{
		"name": "moody", "executable": self, "deadline": "2s", "parameters": map[string]any{"mood": "well"},
	}}
}

func TestFailingPolicyChangesNothingForTraffic(t *testing.T) {
	t.Parallel()
	c := start(t, 1, moodySettings(t), "emulated")
	a := admin(t, c)
	before, err := a.Plan(t.Context())
	require.NoError(t, err)
	for _, mood := range []struct{ name, why, event, result string }{
		{"hang", "did not answer in time", "plan_failed", "result=failed"},
		{"exit", "process died", "plan_failed", "result=failed"},
		{"nonsense", `the GPU "no such GPU" of node "" is not in the snapshot`, "plan_rejected", "result=rejected"},
		{"misset", `emulated: parameter max_queue_delay="soon" is not a duration such as 2ms, zero or more`, "plan_rejected", "result=rejected"},
	} {
		t.Run(mood.name, func(t *testing.T) {
			since := lastEvent(t, a)
			counted := scrape(t, c).sum("conch_plans_total", "policy=moody", mood.result)
			result := underLoad(t, c, 30, func() {
				out, code := tritonctl(t, c, "policy", "use", "moody", "--set", "mood="+mood.name)
				require.Zero(t, code, out)
				out, code = tritonctl(t, c, "plan", "apply", "--yes")
				assert.NotZero(t, code, "who orders a plan is told that there is none")
				assert.Contains(t, out, mood.why)
			})
			requireAllAnswered(t, result)
			now, err := a.Plan(t.Context())
			require.NoError(t, err)
			require.Equal(t, before.Revision, now.Revision, "the last good plan serves on")

			require.Greater(t, scrape(t, c).sum("conch_plans_total", "policy=moody", mood.result), counted)
			out, code := tritonctl(t, c, "plan", "diff")
			require.NotZero(t, code, out)
			require.Contains(t, out, mood.why)
			out, code = tritonctl(t, c, "policy", "ls")
			require.Zero(t, code, out)
			require.Regexp(t, `(?m)^moody +\*.*`+regexp.QuoteMeta(mood.why), out)
			require.Condition(t, func() bool {
				return slices.ContainsFunc(eventKinds(t, a, since), func(e string) bool {
					return strings.HasPrefix(e, mood.event+": ") && strings.Contains(e, "policy moody") && strings.Contains(e, mood.why)
				})
			}, "%s among %q", mood.event, eventKinds(t, a, since))
		})
	}
	_, err = a.UsePolicy(t.Context(), api.UsePolicyRequest{Name: "static", Author: "test"})
	require.NoError(t, err, "another policy can take over")
}
