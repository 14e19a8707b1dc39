// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package estimates_test

import (
	"bytes"
	"context"
	"io/fs"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/estimator"
	"github.com/conch-serving/conch/estimator/calibrate"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/control/estimates"
)

type content struct{ *bytes.Reader }

func (content) Close() error { return nil }

// shelf holds the content of files by digest, and counts how often one was opened.
type shelf struct {
	files  map[string][]byte
	opened int
}

func (s *shelf) open(f repo.File) (estimates.File, error) {
	s.opened++
	text, ok := s.files[f.Digest]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return content{bytes.NewReader(text)}, nil
}

func encoder(t *testing.T) []byte {
	t.Helper()
	for _, m := range calibrate.Whole() {
		if m.Name == "encoder" {
			file, err := m.Build()
			require.NoError(t, err)
			return file
		}
	}
	t.Fatal("no encoder")
	return nil
}

func model(backend string, paths ...string) *repo.Model {
	m := &repo.Model{Name: "m", Digest: backend, Versions: []int64{1}, Config: &tritonpb.ModelConfig{
		Name: "m", Backend: backend, MaxBatchSize: 4, Input: []*tritonpb.ModelInput{{Name: calibrate.Input, Dims: []int64{48, 192}}},
	}}
	for _, p := range paths {
		m.Files = append(m.Files, repo.File{Path: p, Digest: p, Size: 1 << 20})
	}
	return m
}

// book estimates without rests.
func book(s *shelf, bundles ...*estimator.Bundle) *estimates.Book {
	return estimates.New(estimates.Options{Open: s.open, Bundles: bundles, Now: time.Now, After: func(time.Duration) <-chan time.Time {
		over := make(chan time.Time)
		close(over)
		return over
	}})
}

// estimated runs a book until it has nothing more to do.
func estimated(t *testing.T, b *estimates.Book, m *repo.Model, places ...estimates.Place) (all []*estimates.Estimate) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	b.Want([]*repo.Model{m}, places)
	b.Run(ctx, func(*estimates.Estimate) {}, func(some []*estimates.Estimate) {
		all = some
		stop()
	})
	return all
}

func TestWhatIsEstimatedAndWhatIsNot(t *testing.T) {
	graph := encoder(t)
	broken := bytes.Repeat([]byte{0x3a, 0xff}, 500)
	t4, emulated, cpu := estimates.Place{Type: "T4"}, estimates.Place{Type: "T4", Emulated: true}, estimates.Place{Type: "epyc"}
	for name, c := range map[string]struct {
		model   *repo.Model
		place   estimates.Place
		content []byte
		points  int
		reason  string // why not
		warning string
	}{
		"a graph":                            {model("onnxruntime", "1/model.onnx"), t4, graph, 30, "", ""},
		"a graph on an emulated GPU":         {model("onnxruntime", "1/model.onnx"), emulated, graph, 30, "", ""},
		"a python model beside a graph":      {model("python", "1/model.py", "1/model.onnx"), t4, graph, 30, "", "as if it executed model.onnx"},
		"the same on an emulated GPU":        {model("python", "1/model.py", "1/model.onnx"), emulated, graph, 0, "an emulated T4 does not say", ""},
		"a python model alone":               {model("python", "1/model.py"), t4, []byte("class TritonPythonModel: ..."), 0, "", "does what its code says"},
		"a plan of TensorRT":                 {model("tensorrt", "1/model.plan"), t4, graph, 30, "", "is no ONNX graph"},
		"a type without a data sheet":        {model("onnxruntime", "1/model.onnx"), cpu, graph, 0, "tritonctl calibrate", ""},
		"a file that is cut off":             {model("onnxruntime", "1/model.onnx"), t4, graph[:len(graph)/2], 0, "m/1/model.onnx", ""},
		"a file of something else":           {model("onnxruntime", "1/model.onnx"), t4, broken, 0, "m/1/model.onnx", ""},
		"a version without the file":         {model("onnxruntime", "1/other.onnx"), t4, graph, 0, "version 1 has no model.onnx", ""},
		"a file that is gone from the store": {model("onnxruntime", "1/model.onnx"), t4, nil, 0, "file does not exist", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := &shelf{files: map[string][]byte{}}
			for i := range c.model.Files {
				if c.content != nil {
					s.files[c.model.Files[i].Digest], c.model.Files[i].Size = c.content, int64(len(c.content))
				}
			}
			b := book(s)
			all := estimated(t, b, c.model, c.place)
			require.Len(t, all, 1)
			require.Equal(t, all[0], b.Of(c.model, c.place.Type))
			if c.reason != "" {
				require.Nil(t, all[0].Estimate)
				require.Contains(t, all[0].Reason, c.reason)
				return
			}
			require.Empty(t, all[0].Reason)
			require.Len(t, all[0].Points, c.points)
			if c.warning != "" {
				require.Contains(t, all[0].Warnings[0], c.warning)
			}
		})
	}
}

// A bundle describes a device that has no data sheet, and what is estimated once is not estimated again.
func TestABundleIsADevice(t *testing.T) {
	d, err := estimator.NewDevice("T4", "")
	require.NoError(t, err)
	d.Sheet.Name, d.Sheet.Aliases = "epyc", nil
	bundle := &estimator.Bundle{Version: 1, Sheet: d.Sheet, Runtime: d.Runtime, Kernels: d.Kernels, Factors: d.Factors}
	graph := encoder(t)
	s := &shelf{files: map[string][]byte{"1/model.onnx": graph}}
	m := model("onnxruntime", "1/model.onnx")
	m.Files[0].Size = int64(len(graph))
	b := book(s, bundle)
	all := estimated(t, b, m, estimates.Place{Type: "epyc"}, estimates.Place{Type: "T4"})
	require.Len(t, all, 2)
	require.Equal(t, 2, s.opened)
	require.InEpsilon(t, all[1].Points[0].LatencyUS, all[0].Points[0].LatencyUS, .01, "it is a T4 by another name")
	require.Len(t, b.Grids(m), 2)
	require.InEpsilon(t, 4*1.78e6, b.Memory(m).Parameters, .02)

	python := model("python", "1/model.py", "1/model.onnx")
	python.Files[1].Size = int64(len(graph))
	require.NotNil(t, estimated(t, b, python, estimates.Place{Type: "epyc", Emulated: true})[0].Estimate, "it was measured: nothing about it is emulated")

	estimated(t, b, m, estimates.Place{Type: "epyc"})
	s.opened = 2
	more := estimated(t, b, m, estimates.Place{Type: "epyc"}, estimates.Place{Type: "L4"})
	require.Len(t, more, 1)
	require.Equal(t, 3, s.opened, "what is known is not estimated again")
	require.Nil(t, b.Of(m, "T4"), "a type that is gone is forgotten")

	b.Calibrated(bundle)
	require.Nil(t, b.Of(m, "L4"), "what was estimated before the measurement is estimated anew")
}

func observed(e *estimates.Estimate, factor float64, executions uint64) *policy.Profile {
	p := e.Policy(e.Model, e.Type)
	p.Source = policy.ProfileSource_PROFILE_SOURCE_OBSERVED
	for _, q := range p.GetPoints() {
		q.LatencyUs.Value *= factor
		q.Observations = executions
	}
	return p
}

func TestDriftIsSaidOnce(t *testing.T) {
	graph := encoder(t)
	m := model("onnxruntime", "1/model.onnx")
	m.Files[0].Size = int64(len(graph))
	s := &shelf{files: map[string][]byte{"1/model.onnx": graph}}
	b := book(s)
	e := estimated(t, b, m, estimates.Place{Type: "A100"})[0]
	within := 1 + e.Bound

	var w estimates.Watch
	now := time.Unix(1_700_000_000, 0)
	for _, c := range []struct {
		what       string
		after      time.Duration
		factor     float64
		executions uint64
		off        bool
	}{
		{"within the bound", 0, within * .98, 100, false},
		{"too few executions", 0, within * 3, 15, false},
		{"slower than the bound", 0, within * 1.1, 100, true},
		{"the same", time.Second, within * 1.1, 200, false},
		{"another, soon", time.Second, within * 3, 200, false},
		{"another, later", 11 * time.Minute, within * 3, 200, true},
		{"the same, later", 11 * time.Minute, within * 3.1, 200, false},
		{"as estimated again", time.Second, 1, 300, false},
		{"and faster than the bound", time.Second, 1 / within / 1.1, 300, true},
	} {
		now = now.Add(c.after)
		message, off := w.Compare(now, e, observed(e, c.factor, c.executions))
		require.Equal(t, c.off, off, c.what)
		require.Equal(t, c.off, message != "", c.what)
	}
	learning := observed(e, 100, 100)
	learning.Source = policy.ProfileSource_PROFILE_SOURCE_ESTIMATED
	_, off := w.Compare(now.Add(time.Hour), e, learning)
	require.False(t, off, "an estimate is not held against itself")
	require.False(t, math.IsNaN(e.Bound))
}
