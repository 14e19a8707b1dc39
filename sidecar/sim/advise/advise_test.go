// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package advise_test

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/advise"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// world is some models, each on every one of some GPUs, at a rate each.
func world(gpus int, rate float64, models ...string) *policy.Snapshot {
	s := &policy.Snapshot{Revision: 1, Nodes: []*policy.Node{{Name: "n"}}, Current: &policy.Plan{}}
	for i := range gpus {
		id := "gpu" + string(rune('0'+i))
		s.Nodes[0].Gpus = append(s.Nodes[0].Gpus, &policy.GPU{Id: id, Type: "T", Index: uint32(i)})
		p := &policy.Partition{Id: id, Node: "n", Gpus: []string{id}, ThreadPercentage: 100, Rank: uint32(i)}
		for _, m := range models {
			p.Instances = append(p.Instances, policy.ModelInstance(m, 0))
		}
		s.Current.Partitions = append(s.Current.Partitions, p)
	}
	for _, m := range models {
		s.Models = append(s.Models, &policy.Model{Name: m, SloUs: 50000, MaxBatchSize: 32, Batchable: true, Rate: rate, RowRate: rate, Burstiness: 1})
		p := &policy.Profile{Model: m, GpuType: "T", Usable: true, Source: policy.ProfileSource_PROFILE_SOURCE_CALIBRATED}
		for _, b := range []uint32{1, 32} {
			us := 8000 + 500*float64(b)
			p.Points = append(p.Points, &policy.ProfilePoint{Batch: b, ThreadPercentage: 100, LatencyUs: &policy.Estimate{Value: us}, LatencyUpperUs: us})
		}
		s.Profiles = append(s.Profiles, p)
	}
	return s
}

func TestWhoRunsRequestsAloneGainsBatches(t *testing.T) {
	s := world(3, 60, "a", "b")
	before := proto.CloneOf(s)
	in := advise.Input{Snapshot: s, Seeds: []uint64{1, 2}}
	a, err := advise.Make(t.Context(), in)
	require.NoError(t, err)
	require.True(t, a.Enough, a.Text)
	// Three GPUs run at most 3/8.5ms = 353 requests per second one by one.
	require.Less(t, a.Triton.Rate, 353.0)
	require.Greater(t, a.SpreadLow, 2.0)
	require.LessOrEqual(t, a.Low, .4*a.Ratio)
	require.GreaterOrEqual(t, a.High, 1.27*a.Ratio)
	require.LessOrEqual(t, a.Low, a.Ratio)
	require.LessOrEqual(t, a.Ratio, a.High)
	require.Less(t, a.Needed, 3)
	require.Positive(t, a.Needed)
	text := strings.Join(a.Text, "\n")
	require.Contains(t, text, "x the traffic at the same SLO in the simulation. Expect ")
	require.Contains(t, text, ": measured results of 5 loads lay between 0.40 and 1.27 times what was simulated.")
	require.Contains(t, text, "of your 3 GPUs")
	// 120 requests a second of 8.5 ms keep one GPU from ever holding them alone, and are little for one that batches.
	require.Equal(t, &advise.Present{Triton: 2, Conch: 1}, a.Present)
	require.Contains(t, text, "The 120 requests per second that were observed need 1 GPU with Conch, and with Triton's own batching 2.")
	require.True(t, proto.Equal(before, s), "the snapshot is not changed")

	again, err := advise.Make(t.Context(), in)
	require.NoError(t, err)
	require.Equal(t, a, again)
}

// TestAServerOverSeveralGPUs: four GPUs behind one server hold about what four servers hold, and how few of them would do is not asked.
func TestAServerOverSeveralGPUs(t *testing.T) {
	models := []string{"a", "b", "c", "d"}
	batching := map[string]advise.Batching{}
	for _, m := range models {
		batching[m] = advise.Batching{Dynamic: true}
	}
	node := world(1, 60, models...)
	node.Nodes[0].Gpus[0].Executions = 4
	one, err := advise.Make(t.Context(), advise.Input{Snapshot: node, Batching: batching, Seeds: []uint64{1, 2}, Compare: true})
	require.NoError(t, err)
	four, err := advise.Make(t.Context(), advise.Input{Snapshot: world(4, 60, models...), Batching: batching, Seeds: []uint64{1, 2}})
	require.NoError(t, err)
	require.Equal(t, 4, one.GPUs)
	require.Less(t, one.Conch.Rate, four.Conch.Rate, "the server sends two models' batches to one GPU")
	require.Greater(t, one.Conch.Rate, four.Conch.Rate/4)
	require.Greater(t, one.Triton.Rate, four.Triton.Rate, "a queue of a model is one for all GPUs, not one for each")
	require.Less(t, one.Triton.Rate, one.Conch.Rate)
	require.InEpsilon(t, four.Conch.Rate, one.Own.Conch.Rate, .02, "Conch with a server for each GPU, which chooses the GPU of a batch")
	require.Greater(t, one.Own.SpreadLow, one.SpreadHigh)
	require.Equal(t, 4, one.Trust.Loads)
	require.Nil(t, four.Own)
	require.Zero(t, one.Needed)
	require.Nil(t, one.Present)
	require.Contains(t, strings.Join(one.Text, "\n"), "on your 4 GPUs with at most 1% bad")
	require.Contains(t, strings.Join(one.Text, "\n"), "With a server of its own for each of 4 GPUs (driver process), Conch would hold")
	require.Contains(t, strings.Join(one.Text, "\n"), "Not known: which models have instances on which GPUs of a server over several")
}

func TestThinDataGiveNoFigure(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*policy.Snapshot)
		want   string
	}{
		{"nothing arrived", func(s *policy.Snapshot) { s.Models[0].Rate = 0 }, "No requests were seen"},
		{"little arrived", func(s *policy.Snapshot) { s.Models[0].Rate = 3 }, "15 requests; 200 are the least"},
		{"no profile", func(s *policy.Snapshot) { s.Profiles[0].Usable = false }, "how long its batches take is not known"},
		{"no SLO", func(s *policy.Snapshot) { s.Models[0].SloUs = 0 }, "no SLO"},
		{"nowhere", func(s *policy.Snapshot) { s.Current = nil }, "on no GPU"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := world(1, 100, "a")
			c.change(s)
			a, err := advise.Make(t.Context(), advise.Input{Snapshot: s, Seeds: []uint64{1}, Batching: map[string]advise.Batching{"a": {Dynamic: true, Delay: time.Millisecond}}})
			require.NoError(t, err)
			require.False(t, a.Enough)
			require.Nil(t, a.Conch)
			require.Contains(t, strings.Join(a.Text, "\n"), c.want)
		})
	}
}

// What a team sees every day refutes a simulation that says otherwise, and then there is no figure. 8.5 ms alone are 117 requests a second at the most.
func TestAdviceThatTheLiveTrafficRefutesIsNotGiven(t *testing.T) {
	for _, c := range []struct {
		name string
		rate float64
		bad  map[string]float64
		want string
	}{
		{"good, and far too much in the simulation", 140, map[string]float64{"a": .004}, "0.4% of all requests were bad at 140 requests per second"},
		{"bad, and little in the simulation", 20, map[string]float64{"a": .3}, "30.0% of all requests were bad at 20 requests per second"},
		{"as bad as simulated", 140, map[string]float64{"a": .9}, ""},
		{"as good as simulated", 60, map[string]float64{"a": 0}, ""},
		{"a model of many", 10, map[string]float64{"a": .2, "b": 0, "c": 0, "d": 0, "e": 0, "f": 0}, "20.0% of the requests for a were bad at 60 requests per second in all"},
		{"nothing was seen", 140, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			names := slices.Sorted(maps.Keys(c.bad))
			if len(names) == 0 {
				names = []string{"a"}
			}
			s := world(1, c.rate, names...)
			s.Statistics = &policy.DispatchStatistics{WindowSeconds: 60}
			in := advise.Input{Snapshot: s, Seeds: []uint64{1, 2}, Seen: c.bad}
			a, err := advise.Make(t.Context(), in)
			require.NoError(t, err)
			require.Equal(t, c.want != "", strings.Contains(a.Page(in).Verdict.Text, "does not agree with what it does"))
			require.Equal(t, c.want == "", a.Enough, a.Text)
			require.Equal(t, c.want == "", a.Triton != nil)
			require.Contains(t, strings.Join(a.Text, "\n"), c.want)
		})
	}
}

// Requests whose callers' own deadlines passed count neither way: they may be the bad ones of the simulation.
func TestRequestsThatWereNotJudgedRefuteNothing(t *testing.T) {
	s := world(1, 140, "a")
	s.Statistics = &policy.DispatchStatistics{WindowSeconds: 60}
	for atMost, enough := range map[float64]bool{0: false, .01: false, .9: true} {
		a, err := advise.Make(t.Context(), advise.Input{Snapshot: s, Seeds: []uint64{1, 2}, Seen: map[string]float64{"a": .004}, SeenAtMost: map[string]float64{"a": atMost}})
		require.NoError(t, err)
		require.Equal(t, enough, a.Enough, a.Text)
	}
}

// What was seen of a recording is held against its end, and few requests refute nothing.
func TestOnlyEnoughOfARecordingRefutes(t *testing.T) {
	s := source{world(1, 5, "a", "b"), 1, 1}
	in := advise.Input{Snapshot: s.snapshot, Traffic: s.record(10, time.Minute, 7), Seeds: []uint64{1, 2}, Seen: map[string]float64{"a": .3, "b": .3}}
	for from, enough := range map[time.Duration]bool{30 * time.Second: false, 50 * time.Second: true, time.Minute: true, time.Hour: true} {
		in.SeenFrom = from
		a, err := advise.Make(t.Context(), in)
		require.NoError(t, err)
		require.Equal(t, enough, a.Enough, a.Text)
	}
}

// A model that is called once a minute does not prevent an answer about the others; one that makes up much of the traffic does.
func TestAModelThatIsHardlyCalledIsLeftOut(t *testing.T) {
	s := world(1, 60, "a", "rare")
	s.Models[1].Rate = 1
	a, err := advise.Make(t.Context(), advise.Input{Snapshot: s, Seeds: []uint64{1}})
	require.NoError(t, err)
	require.True(t, a.Enough, a.Text)
	require.Contains(t, strings.Join(a.Text, "\n"), "Not known: what rare costs the others: it is left out here (5 requests; 200 are the least.")
	s.Models[1].Rate = 20
	a, err = advise.Make(t.Context(), advise.Input{Snapshot: s, Seeds: []uint64{1}})
	require.NoError(t, err)
	require.False(t, a.Enough)
	require.Contains(t, strings.Join(a.Text, "\n"), "rare: 100 requests; 200 are the least")
}

// What a recording that was cut off holds is used, and reported as cut off; one that holds nothing is an error.
func TestARecordingThatWasCutOff(t *testing.T) {
	var file bytes.Buffer
	w, err := workload.NewWriter(&file, workload.Header{})
	require.NoError(t, err)
	n, err := w.Model(workload.TraceModel{Name: "a"})
	require.NoError(t, err)
	for i := range 1000 {
		require.NoError(t, w.Write(workload.Arrival{At: time.Duration(i) * 20 * time.Millisecond, Model: n, Rows: 1}))
	}
	require.NoError(t, w.Flush())
	traffic, err := advise.ReadTraffic(bytes.NewReader(file.Bytes()[:file.Len()-1]))
	require.NoError(t, err)
	require.Len(t, traffic.Arrivals, 999)
	a, err := advise.Make(t.Context(), advise.Input{Snapshot: world(1, 60, "a"), Seeds: []uint64{1}, Traffic: traffic})
	require.NoError(t, err)
	require.True(t, a.Enough, a.Text)
	require.Contains(t, strings.Join(a.Text, "\n"), "Not known: what arrived after the recording was cut off")

	// The snapshot may be of a moment after the traffic.
	quiet := world(1, 0, "a")
	a, err = advise.Make(t.Context(), advise.Input{Snapshot: quiet, Seeds: []uint64{1}, Traffic: traffic})
	require.NoError(t, err)
	require.True(t, a.Enough, a.Text)

	header := bytes.IndexByte(file.Bytes(), '\n') + 3
	_, err = advise.ReadTraffic(bytes.NewReader(file.Bytes()[:header]))
	require.ErrorIs(t, err, workload.ErrTruncated)
}

// The page has the advice's own figures in its verdict, and both sides at the observed rate.
func TestThePageOfAnAdvice(t *testing.T) {
	for _, c := range []struct {
		advice advise.Advice
		text   string
		label  string
	}{
		{advise.Advice{Enough: true, Triton: found(100), Conch: found(150), Gain: advise.Gain{Ratio: 1.5, Low: 1.4, High: 1.6, Trust: advise.Trust{Loads: 3, Low: .9, High: 1.1}}}, "1.50 times the traffic at the same SLOs in the simulation: 150 requests per second where Triton's own batching holds 100. Expect 1.40 to 1.60: measured results of 3 loads lay between 0.90 and 1.10 times what was simulated.", "a gain"},
		{advise.Advice{Enough: true, Triton: found(100), Conch: found(101), Gain: advise.Gain{Ratio: 1.01, Low: .9, High: 1.1}}, ". No gain can be promised.", "no gain can be promised"},
		{advise.Advice{Enough: true, Triton: found(100), Conch: found(50), Gain: advise.Gain{Ratio: .5, Low: .4, High: .6}}, "That is less.", "a loss"},
		{advise.Advice{Enough: true, Triton: found(0), Conch: found(50)}, "Triton holds the SLOs at no rate at all", "nothing to compare with"},
		{advise.Advice{Enough: true, Triton: &sim.Found{Rate: 5, Low: 1, High: 9}, Conch: &sim.Found{Rate: 7, Low: 2, High: 20}}, "No gain can be promised: 2 to 20 requests per second where Triton holds 1 to 9; the repetitions differ too much", "not steady"},
		{advise.Advice{Enough: true, Triton: &sim.Found{Rate: 5, Low: 1, High: 9}, Conch: found(50), Gain: advise.Gain{Trust: advise.Trust{Low: .4, High: 1.3}}}, "hold more than Triton: 50 to 50", "a gain"},
		{advise.Advice{Enough: true, Triton: found(100), Conch: found(0)}, "Do not put it in control", "a loss"},
		{advise.Advice{Missing: []string{"m: 3 requests."}, Text: []string{"There is too little:", "m: 3 requests."}}, "There is too little: m: 3 requests.", "not known"},
		{advise.Advice{Possible: []advise.Possible{{Gain: 1.1}, {Gain: 3}}}, "1.10 to 3.00 times", "a range"},
	} {
		page := c.advice.Page(advise.Input{Snapshot: &policy.Snapshot{}, Seeds: []uint64{1, 2}})
		require.Contains(t, page.Verdict.Text, c.text)
		require.Equal(t, c.label, page.Verdict.Label)
	}
}

func found(rate float64) *sim.Found {
	return &sim.Found{Rate: rate, Low: rate, High: rate, All: []sim.Highest{{Seed: 1, Rate: rate}, {Seed: 2, Rate: rate}}}
}

// Where there is no ratio, what is known of the simulation's error decides whether one side is said to hold more.
func TestNoGainIsPromisedWithinTheError(t *testing.T) {
	trust := advise.Trust{Loads: 5, Low: .4, High: 1.3}
	for conch, label := range map[float64]string{10: "a loss", 40: "a loss", 45: "not steady", 200: "not steady", 260: "a gain"} {
		a := advise.Advice{Enough: true, Triton: &sim.Found{Rate: 80, Low: 55, High: 100}, Conch: found(conch), Gain: advise.Gain{Trust: trust}}
		require.Equal(t, label, a.Page(advise.Input{Snapshot: &policy.Snapshot{}, Seeds: []uint64{1}}).Verdict.Label, conch)
	}
}

// What servers of two types counted of one model is one figure, and no figure of either.
func TestGPUsOfSeveralTypesAreNotMixed(t *testing.T) {
	s := world(2, 60, "a", "b")
	s.Nodes[0].Gpus[1].Type = "U"
	s.Profiles = append(s.Profiles, proto.CloneOf(s.Profiles[0]), proto.CloneOf(s.Profiles[1]))
	s.Profiles[2].GpuType, s.Profiles[3].GpuType = "U", "U"
	counted := []advise.Executions{{Rows: 1, Count: 50, Mean: 9 * time.Millisecond}, {Rows: 32, Count: 50, Mean: 25 * time.Millisecond}}
	in := advise.Input{Snapshot: s, Seeds: []uint64{1}}
	a, err := advise.Make(t.Context(), in)
	require.NoError(t, err)
	require.True(t, a.Enough, a.Text)
	in.Shared, in.Counted = true, map[string][]advise.Executions{"a": counted, "b": counted}
	a, err = advise.Make(t.Context(), in)
	require.NoError(t, err)
	require.False(t, a.Enough)
	require.Contains(t, strings.Join(a.Text, "\n"), "a: it is on GPUs of several types (T, U), whose executions are not told apart.")
}

// Where only small batches were timed, and waited by chance, a row seems to cost nothing: larger ones would be free.
func TestLargeBatchesThatWereNotTimedAreNotFree(t *testing.T) {
	s := source{world(1, 20, "a"), 1, 1}
	for largest, enough := range map[int]bool{4: false, 32: true} {
		in := advise.Input{Snapshot: s.snapshot, Traffic: s.record(20, time.Minute, 7), Seeds: []uint64{1}, Shared: true, Counted: map[string][]advise.Executions{}, Timed: map[string]advise.Grid{"a": {}}}
		for rows := 1; rows <= largest; rows *= 2 {
			takes := 9*time.Millisecond + time.Duration(rows/8)*4*time.Millisecond
			in.Counted["a"] = append(in.Counted["a"], advise.Executions{Rows: rows, Count: 60, Mean: takes})
			in.Timed["a"][rows] = takes
		}
		a, err := advise.Make(t.Context(), in)
		require.NoError(t, err)
		require.Equal(t, enough, a.Enough, a.Text)
		require.Equal(t, !enough, strings.Contains(strings.Join(a.Text, "\n"), "a: its batches above 4 rows were not timed"))
		require.True(t, !enough || strings.Contains(strings.Join(a.Text, "\n"), "Not known: whether the simulation of your Triton agrees"))
	}
}
