// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/pack/packtest"
	"github.com/conch-serving/conch/sidecar/control/snapshot"
	"github.com/conch-serving/conch/sidecar/observe"
)

// BenchmarkCluster: the parts of a snapshot of 4,000 GPUs and 400 models, every eighth of which is an ensemble of four steps.
func BenchmarkCluster(b *testing.B) {
	w := packtest.World(4000)
	steps := make(map[string][]snapshot.Step)
	var observed []*policy.Profile
	for i := range 400 {
		name := fmt.Sprintf("m%03d", i)
		w.Line(name, .5, 4, 100, 100)
		own := proto.CloneOf(w.Profiles[i])
		observed = append(observed, own)
		if i%8 == 0 && i >= 8 {
			for k := range 4 {
				steps[name] = append(steps[name], snapshot.Step{Model: fmt.Sprintf("m%03d", i-1-k), After: [][]int{nil, {0}, {0}, {1, 2}}[k]})
			}
		}
	}
	b.Run("profiles", func(b *testing.B) {
		for b.Loop() {
			snapshot.Complete(observed, nil, nil, w.Models, snapshot.Types(w.Nodes, nil))
		}
	})
	b.Run("pipelines", func(b *testing.B) {
		e := snapshot.Ensembles{Steps: func(name string) []snapshot.Step { return steps[name] }, Walks: func(string) observe.Walks { return observe.Walks{} }}
		for b.Loop() {
			s := &policy.Snapshot{Models: w.Models, Nodes: w.Nodes}
			snapshot.AddPipelines(s, e)
			b.StopTimer()
			for _, m := range w.Models {
				m.Rate, m.RowRate = 100, 100
			}
			b.StartTimer()
		}
	})
	b.Run("clone", func(b *testing.B) {
		for b.Loop() {
			proto.CloneOf(w.Snapshot)
		}
	})
}
