// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/grid"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control/snapshot"
)

func grids(t *testing.T) snapshot.Grids {
	t.Helper()
	all, err := grid.Read(strings.NewReader(`gpu_type,batch,thread_percentage,latency_us,error_bound_us,creq,bandwidth_utilization
T4,1,50,16000,1000,.5,.2
T4,8,50,40000,1000,1,.3
T4,1,100,10000,1000,.4,.4
T4,8,100,24000,1000,.8,.6
`))
	require.NoError(t, err)
	return snapshot.Grids{"m": all}
}

func seen(us float64) *policy.Profile {
	p := &policy.Profile{Model: "m", GpuType: "T4", Usable: true, Source: policy.ProfileSource_PROFILE_SOURCE_OBSERVED}
	for _, b := range []uint32{1, 8} {
		l := us * (float64(b)*2 + 8) / 10
		p.Points = append(p.Points, &policy.ProfilePoint{Batch: b, ThreadPercentage: 100, LatencyUs: &policy.Estimate{Value: l, ErrorBound: 10}, LatencyUpperUs: l + 10, Observations: 50})
	}
	return p
}

func TestAGridIsTheProfileUntilSomethingIsObserved(t *testing.T) {
	models := []*policy.Model{{Name: "m"}, {Name: "n"}}
	all := snapshot.Complete(nil, grids(t), nil, models, []string{"T4", "A100"})
	require.Len(t, all, 1, "the grid is of one model on one type")
	require.True(t, all[0].GetUsable())
	require.Equal(t, policy.ProfileSource_PROFILE_SOURCE_DECLARED, all[0].GetSource())
	l, _ := all[0].Latency(8, 50)
	require.InDelta(t, 40000, l, 0)

	learning := seen(5000)
	learning.Usable = false
	all = snapshot.Complete([]*policy.Profile{learning}, grids(t), nil, models, []string{"T4"})
	require.Equal(t, policy.ProfileSource_PROFILE_SOURCE_DECLARED, all[0].GetSource())
}

func TestWhatIsObservedCorrectsTheSharesThatAreNot(t *testing.T) {
	// Twice as fast as declared.
	all := snapshot.Complete([]*policy.Profile{seen(5000)}, grids(t), nil, []*policy.Model{{Name: "m"}}, []string{"T4"})
	p := all[0]
	require.Equal(t, policy.ProfileSource_PROFILE_SOURCE_OBSERVED, p.GetSource())
	for _, c := range []struct {
		batch, share uint32
		want         float64
	}{{1, 100, 5000}, {8, 100, 12000}, {1, 50, 8000}, {8, 50, 20000}} {
		l, ok := p.Latency(c.batch, c.share)
		require.True(t, ok)
		require.InDelta(t, c.want, l, 1, "batch %d at %d%%", c.batch, c.share)
	}
	creq, ok := p.Creq(8, 100)
	require.True(t, ok)
	require.InDelta(t, .8, creq, 1e-9)
	bandwidth, _ := p.Bandwidth(1, 75)
	require.InDelta(t, .3, bandwidth, 1e-9, "between two shares")
	_, ok = p.L2(1, 100)
	require.False(t, ok, "what nobody declared is not known")
}

func TestHistoryIsOfFullMinutes(t *testing.T) {
	var h snapshot.History
	at := time.Unix(1_700_000_040, 0).Truncate(time.Minute)
	require.Empty(t, h.List())
	for i := range 60 {
		h.Add(at.Add(time.Duration(i)*time.Second), map[string]float64{"m": float64(i)})
	}
	require.Empty(t, h.List(), "the minute is not over")
	h.Add(at.Add(3*time.Minute), map[string]float64{"n": 7})
	h.Add(at.Add(4*time.Minute), nil)
	list := h.List()
	require.Len(t, list, 2)
	require.Equal(t, []float64{29.5, 0, 0, 0}, list[0].GetRates())
	require.Equal(t, []float64{0, 0, 0, 7}, list[1].GetRates())
	for i := range 100 {
		h.Add(at.Add(time.Duration(5+i)*time.Minute), map[string]float64{"m": 1})
	}
	require.Len(t, h.List()[0].GetRates(), 60)
	h.Add(at.Add(100*time.Hour), map[string]float64{"m": 1})
	require.Empty(t, h.List(), "a gap of more than an hour is forgotten at once")
}

func TestAppsOfTheRepository(t *testing.T) {
	c, err := config.Parse("conch.yaml", []byte(`
apiVersion: conch/v1
apps:
  classify:
    accuracy: 0.7
    slo: 50ms
    variants:
      - {model: large, accuracy: 0.8, precision: fp32}
      - {model: gone, accuracy: 0.9}
      - {model: small, accuracy: 0.7, places: [cpu]}
interference: [{type: T4, l2Other: 0.5, constant: 1}]
offers: [{type: T4, count: 3, costPerHour: 0.5, start: 90s}]
cpus: {cores: 4, type: epyc}
`))
	require.NoError(t, err)
	apps := snapshot.Apps(c, []*policy.Model{{Name: "large"}, {Name: "small"}}, nil, func(string) (float64, []*policy.Wish) { return 12, nil })
	require.Len(t, apps, 1)
	require.Len(t, apps[0].GetVariants(), 2, "a variant that the repository does not have is none")
	require.Equal(t, int64(50_000), apps[0].GetSloUs())
	require.Equal(t, 12.0, apps[0].GetRate())
	require.Equal(t, []string{"cpu"}, apps[0].GetVariants()[1].GetPlaces())
	require.Equal(t, .5, snapshot.Interference(c)[0].GetL2Other())
	require.Equal(t, 90.0, snapshot.Offers(c)[0].GetStartSeconds())
	require.Equal(t, uint32(4), snapshot.CPU(c).GetCores())
	require.Equal(t, []string{"A100", "T4", "epyc"}, snapshot.Types([]*policy.Node{{Gpus: []*policy.GPU{{Type: "A100"}}, Cpu: snapshot.CPU(c)}}, snapshot.Offers(c)))
}
