// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package grid_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/grid"
)

const asCSV = `# resnet50 on two types
gpu_type,batch,thread_percentage,latency_us,error_bound_us,creq
T4,8,100,30000,500,.9
T4,1,100,9000,,.4
T4,1,50,14000,,.4
A100,1,100,5000,100,.2
`

const asJSON = `[
  {"gpu_type": "T4", "points": [
    {"batch": 1, "thread_percentage": 50, "latency_us": 14000, "creq": 0.4},
    {"batch": 1, "thread_percentage": 100, "latency_us": 9000, "creq": 0.4},
    {"batch": 8, "thread_percentage": 100, "latency_us": 30000, "error_bound_us": 500, "creq": 0.9}]},
  {"gpu_type": "A100", "source": "declared", "points": [
    {"batch": 1, "thread_percentage": 100, "latency_us": 5000, "error_bound_us": 100, "creq": 0.2}]}
]`

func TestBothFormsSayTheSame(t *testing.T) {
	fromCSV, err := grid.Read(strings.NewReader(asCSV))
	require.NoError(t, err)
	fromJSON, err := grid.Read(strings.NewReader(asJSON))
	require.NoError(t, err)
	require.Equal(t, fromJSON, fromCSV)

	var written bytes.Buffer
	require.NoError(t, grid.Write(&written, fromCSV...))
	again, err := grid.Read(&written)
	require.NoError(t, err)
	require.Equal(t, fromCSV, again)
}

func TestAsPolicySeesIt(t *testing.T) {
	all, err := grid.Read(strings.NewReader(asCSV))
	require.NoError(t, err)
	p, ok := grid.For(all, "resnet50", "T4")
	require.True(t, ok)
	seen := p.Policy("resnet50", "T4")
	require.Equal(t, policy.ProfileSource_PROFILE_SOURCE_DECLARED, seen.GetSource())
	l, ok := seen.Latency(1, 50)
	require.True(t, ok)
	require.InDelta(t, 14000, l, 0)
	u, _ := seen.Upper(8, 100)
	require.InDelta(t, 30500, u, 0)
	require.InDelta(t, .9, seen.GetPoints()[2].GetCreq().GetValue(), 0)
	require.Nil(t, seen.GetPoints()[2].GetMreq(), "a figure that is not in the file is not known")
	_, ok = grid.For(all, "resnet50", "K80")
	require.False(t, ok)
}

func TestTheMoreParticularProfileWins(t *testing.T) {
	all := []grid.Profile{{Source: "any"}, {GPUType: "T4", Source: "type"}, {Model: "m", Source: "model"}, {Model: "m", GPUType: "T4", Source: "both"}}
	for _, c := range []struct{ model, gpuType, want string }{
		{"m", "T4", "both"}, {"m", "A100", "model"}, {"n", "T4", "type"}, {"n", "A100", "any"},
	} {
		p, _ := grid.For(all, c.model, c.gpuType)
		require.Equal(t, c.want, p.Source)
	}
}

func TestWhatIsWrongIsSaid(t *testing.T) {
	for file, want := range map[string]string{
		"":                                   "no header",
		"batch,thread_percentage,latency_us": "it holds no points",
		"batch,latency_us\n1,2":              "column thread_percentage is missing",
		"batch,thread_percentage,latency_us,speed\n":                       `no column is called "speed"`,
		"batch,batch,thread_percentage,latency_us\n":                       "column batch is there twice",
		"batch,thread_percentage,latency_us\n1,100,fast":                   `line 2: latency_us "fast" is no number`,
		"batch,thread_percentage,latency_us\n1.5,100,3":                    `line 2: batch "1.5" is no whole number`,
		"batch,thread_percentage,latency_us\n1,100,3\n1,100,4":             "it is there twice",
		"batch,thread_percentage,latency_us\n1,101,3":                      "a thread percentage is from 1 to 100",
		"batch,thread_percentage,latency_us\n0,10,3":                       "a batch is from 1",
		"batch,thread_percentage,latency_us\n1,10,NaN":                     "latency_us NaN",
		"batch,thread_percentage,latency_us\n1,10,-1":                      "latency_us -1",
		"batch,thread_percentage,latency_us,creq\n1,10,1,20":               "creq 20 is no fraction",
		"batch,thread_percentage,latency_us,source\n1,10,1,x":              `source "x" is none of`,
		"batch,thread_percentage,latency_us,latency_upper_us\n1,10,5,4":    "latency_upper_us 4 is below",
		`{"points": [{"batch": 1, "speed": 3}]}`:                           "unknown field",
		`{"points": []}`:                                                   "has no points",
		`[]`:                                                               "it holds no points",
		`{"points": [{"batch":1,"thread_percentage":1,"latency_us":1}]} x`: "something follows",
	} {
		_, err := grid.Read(strings.NewReader(file))
		require.ErrorIs(t, err, grid.ErrFormat, "%q", file)
		require.ErrorContains(t, err, want, "%q", file)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(asCSV))
	f.Add([]byte(asJSON))
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := grid.Read(bytes.NewReader(data))
		if err != nil {
			require.ErrorIs(t, err, grid.ErrFormat)
			return
		}
		var written bytes.Buffer
		require.NoError(t, grid.Write(&written, all...))
		again, err := grid.Read(&written)
		require.NoError(t, err)
		require.Equal(t, all, again)
	})
}
