// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package names_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/names"
)

// classify has a cheap variant, a good one, and a better one that does not run.
func classify() *names.App {
	return &names.App{
		Wish: names.Wish{Accuracy: .7, Latency: 100 * time.Millisecond},
		Variants: []names.Variant{
			{Model: "small", Accuracy: .72, Latency: 20 * time.Millisecond, Weight: 100, State: names.Active},
			{Model: "large", Accuracy: .80, Latency: 80 * time.Millisecond, Weight: 50, State: names.Active},
			{Model: "huge", Accuracy: .90, Latency: 90 * time.Millisecond, State: names.Inactive, Wait: 5 * time.Second},
			{Model: "vast", Accuracy: .91, Latency: 90 * time.Millisecond, State: names.Inactive, Wait: 4 * time.Second},
		},
	}
}

func resolver(a *names.App) *names.Resolver {
	return names.New(map[string]*names.Name{"classify": {Name: "classify", App: a}}, nil)["classify"]
}

func TestACheapVariantServesWhatItMeets(t *testing.T) {
	for _, c := range []struct {
		name       string
		parameters []batch.Parameter
		model      string
		refused    string // text of the error
	}{
		{"nothing said", nil, "small", ""},
		{"accuracy", []batch.Parameter{batch.DoubleParameter("accuracy", .75)}, "large", ""},
		{"accuracy as text", []batch.Parameter{batch.StringParameter("accuracy", "0.75")}, "large", ""},
		{"latency in microseconds", []batch.Parameter{batch.Int64Parameter("latency", 20_000)}, "small", ""},
		{"latency as text", []batch.Parameter{batch.StringParameter("latency", "25ms")}, "small", ""},
		{"both", []batch.Parameter{batch.DoubleParameter("accuracy", .8), batch.StringParameter("latency", "80ms")}, "large", ""},
		{"no variant is so good and so fast", []batch.Parameter{batch.DoubleParameter("accuracy", .8), batch.StringParameter("latency", "20ms")}, "",
			"no variant of 'classify' has an accuracy of at least 0.8 within 20ms; there is 'small' with accuracy 0.72 within 20ms, 'large' with accuracy 0.8 within 80ms, 'huge' with accuracy 0.9 within 90ms (inactive)"},
		{"no accuracy", []batch.Parameter{batch.StringParameter("accuracy", "good")}, "", "'accuracy' of a request for 'classify' has to be a number from 0 to 1"},
		{"more than all", []batch.Parameter{batch.Int64Parameter("accuracy", 2)}, "", "from 0 to 1"},
		{"no latency", []batch.Parameter{batch.Int64Parameter("latency", 0)}, "", "positive number of microseconds"},
		{"a latency that is none", []batch.Parameter{batch.BoolParameter("latency", true)}, "", "positive number of microseconds"},
		{"a sequence", []batch.Parameter{batch.Int64Parameter("sequence_id", 7)}, "", "name one of its variants"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &batch.Request{Model: "classify", Parameters: append(c.parameters, batch.StringParameter("mine", "kept"))}
			target, err := resolver(classify()).Resolve(r, 0)
			if c.refused != "" {
				require.Equal(t, codes.InvalidArgument, status.Code(err))
				require.ErrorContains(t, err, c.refused)
				require.Equal(t, "classify", r.Model, "a request that is refused is left as it was")
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.model, target.Model)
			require.Equal(t, c.model, r.Model)
			require.Equal(t, []batch.Parameter{batch.StringParameter("mine", "kept")}, r.Parameters, "wishes are Conch's, all else is the model's")

			resp := &batch.Response{Model: c.model}
			target.Answer(resp)
			require.Equal(t, "classify", resp.Model)
			require.Equal(t, []batch.Parameter{batch.StringParameter(names.ParameterVariant, c.model)}, resp.Parameters)
		})
	}
}

// TestAnInactiveVariantIsAskedFor: the error names the one that could answer soonest. There is no error while another
// that meets the wish starts.
func TestAnInactiveVariantIsAskedFor(t *testing.T) {
	wish := func() *batch.Request {
		return &batch.Request{Model: "classify", Parameters: []batch.Parameter{batch.DoubleParameter("accuracy", .85)}}
	}
	a := classify()
	_, err := resolver(a).Resolve(wish(), 0)
	var inactive *names.InactiveError
	require.ErrorAs(t, err, &inactive)
	require.Equal(t, names.InactiveError{Name: "classify", Model: "vast", Wish: names.Wish{Accuracy: .85, Latency: 100 * time.Millisecond}, Rows: 1}, *inactive)

	a.Variants[2].State = names.Starting
	target, err := resolver(a).Resolve(wish(), 0)
	require.NoError(t, err)
	require.Equal(t, "huge", target.Model, "it waits in that model's queue")
}

func TestAnAppHasOneVersion(t *testing.T) {
	for version, ok := range map[string]bool{"": true, "1": true, "2": false} {
		_, err := resolver(classify()).Resolve(&batch.Request{Model: "classify", Version: version}, 0)
		require.Equal(t, ok, err == nil, "version %q: %v", version, err)
	}
}

// spread sends so many requests of one row a second for two seconds and counts where they went in the second one.
func spread(t *testing.T, c *names.Chooser, w names.Wish, rate int) map[int]int {
	t.Helper()
	counts := map[int]int{}
	for i := range 2 * rate {
		at := time.Duration(i) * time.Second / time.Duration(rate)
		v, err := c.Choose("classify", w, 1, at)
		require.NoError(t, err)
		if at >= time.Second {
			counts[v]++
		}
	}
	return counts
}

// TestWhatIsPlannedForIsUsed: the cheapest variant takes requests up to its weight, the next one the rest, and overload is shared in proportion.
func TestWhatIsPlannedForIsUsed(t *testing.T) {
	loose := names.Wish{Accuracy: .5}
	require.Equal(t, map[int]int{0: 80}, spread(t, names.NewChooser(classify()), loose, 80))
	mixed := spread(t, names.NewChooser(classify()), loose, 140)
	require.InDelta(t, 100, mixed[0], 2)
	require.InDelta(t, 40, mixed[1], 2)
	much := spread(t, names.NewChooser(classify()), loose, 600)
	require.InDelta(t, 400, much[0], 6)
	require.InDelta(t, 200, much[1], 6)
	strict := spread(t, names.NewChooser(classify()), names.Wish{Accuracy: .8}, 600)
	require.Equal(t, map[int]int{1: 600}, strict, "overloaded or not, no other is so accurate")
}

// TestAVariantWithoutWeightServesLast: interfered variants have none.
func TestAVariantWithoutWeightServesLast(t *testing.T) {
	a := classify()
	a.Variants[0].Weight = 0
	require.Equal(t, map[int]int{1: 600}, spread(t, names.NewChooser(a), names.Wish{}, 600))
	a.Variants[1].Weight = 0
	require.Equal(t, map[int]int{0: 600}, spread(t, names.NewChooser(a), names.Wish{}, 600), "where none has any, the cheapest")
}

// TestOverloadIsForgotten: after it the cheapest variant takes all requests again within the burst that is allowed.
func TestOverloadIsForgotten(t *testing.T) {
	c := names.NewChooser(classify())
	spread(t, c, names.Wish{}, 5000)
	for i := range 100 {
		v, err := c.Choose("classify", names.Wish{}, 1, 3*time.Second+time.Duration(i)*20*time.Millisecond)
		require.NoError(t, err)
		require.Equal(t, 0, v)
	}
}

// TestWhateverIsChosenMeetsTheWish: and if no variant is chosen, none meets it.
func TestWhateverIsChosenMeetsTheWish(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := &names.App{}
		for range rapid.IntRange(0, 5).Draw(t, "variants") {
			a.Variants = append(a.Variants, names.Variant{
				Accuracy: rapid.SampledFrom([]float64{.5, .7, .9}).Draw(t, "accuracy"), Latency: time.Duration(rapid.IntRange(0, 3).Draw(t, "latency")) * time.Millisecond,
				Weight: float64(rapid.IntRange(0, 3).Draw(t, "weight")), State: rapid.SampledFrom([]names.State{names.Inactive, names.Starting, names.Active}).Draw(t, "state"),
			})
		}
		c := names.NewChooser(a)
		meets := func(v names.Variant, w names.Wish) bool {
			return v.Accuracy >= w.Accuracy && (w.Latency == 0 || v.Latency > 0 && v.Latency <= w.Latency)
		}
		at := time.Duration(0)
		for range 50 {
			w := names.Wish{Accuracy: rapid.SampledFrom([]float64{0, .6, .9, 1}).Draw(t, "wish"), Latency: time.Duration(rapid.IntRange(0, 3).Draw(t, "within")) * time.Millisecond}
			at += time.Duration(rapid.IntRange(0, 1000).Draw(t, "later")) * time.Millisecond
			best := names.State(0)
			some := false
			for _, v := range a.Variants {
				if meets(v, w) {
					some, best = true, max(best, v.State)
				}
			}
			i, err := c.Choose("app", w, rapid.IntRange(1, 8).Draw(t, "rows"), at)
			if err != nil {
				if some {
					t.Fatalf("refused what could be served: %v", err)
				}
				continue
			}
			if v := a.Variants[i]; !meets(v, w) || v.State != best {
				t.Fatalf("chose %+v for %+v where one that is %v would have done", v, w, best)
			}
		}
	})
}

// TestAShapeThatNobodyCheckedYetWeighsNothingSpecial: a request whose shape has two thousand million rows is refused by the variant's server; the
// cheap variant goes on serving the others.
func TestAShapeThatNobodyCheckedYetWeighsNothingSpecial(t *testing.T) {
	all := names.New(map[string]*names.Name{"classify": {Name: "classify", App: classify(), Config: &tritonpb.ModelConfig{MaxBatchSize: 8}}}, nil)
	for i, rows := range []int64{math.MaxInt32, math.MaxInt64, -1, 9, 1, 8, 1} {
		r := &batch.Request{Model: "classify", Inputs: []batch.Tensor{{Name: "IN", Shape: []int64{rows, 4}}}}
		target, err := all["classify"].Resolve(r, time.Duration(i)*time.Second)
		require.NoError(t, err)
		require.Equal(t, "small", target.Model, "request %d", i)
	}
}

// TestWhatWasAskedForIsKept: if the variant has left the table meanwhile, the name is resolved again, by the same wish.
func TestWhatWasAskedForIsKept(t *testing.T) {
	asked := []batch.Parameter{batch.StringParameter("accuracy", "0.75"), batch.StringParameter("other", "x")}
	r := &batch.Request{Model: "classify", Parameters: asked}
	_, err := resolver(classify()).Resolve(r, 0)
	require.NoError(t, err)
	require.Equal(t, []batch.Parameter{batch.StringParameter("other", "x")}, r.Parameters)
	require.Equal(t, []batch.Parameter{batch.StringParameter("accuracy", "0.75"), batch.StringParameter("other", "x")}, asked)
}
