// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"fmt"
	"testing"

	"github.com/conch-serving/conch/sidecar/apply/decide"
)

// cluster has so many partitions, each with ten of so many models, and their servers: those serve the models with another revision than is wanted where outdated.
func cluster(partitions, models int, outdated bool) (decide.Want, decide.Seen) {
	w, s := decide.Want{Models: map[string]decide.Model{}, Memory: map[string]uint64{}}, decide.Seen{ParallelLoads: 4}
	for i := range partitions {
		gpu := fmt.Sprintf("node-%04d/gpu%d", i/4, i%4)
		w.Memory[gpu] = 80 << 30
		p := decide.Partition{Key: key(fmt.Sprintf("node-%04d.gpu%d", i/4, i%4)), GPU: gpu, Memory: 70 << 30, Rank: i}
		v := up(uint64(i+1), p.Key, "1")
		v.GPU = gpu
		for n := range 10 {
			m := fmt.Sprintf("m%03d", (10*i+n)%models)
			p.Instances = append(p.Instances, decide.Instance{Model: m, MaxBatch: 8})
			v.Loaded[m] = decide.Loaded{Revision: "1", Answers: true, Tried: true}
			w.Models[m] = decide.Model{Revision: "1"}
		}
		w.Partitions, s.Servers = append(w.Partitions, p), append(s.Servers, v)
	}
	if outdated {
		for m := range w.Models {
			w.Models[m] = decide.Model{Revision: "2"}
		}
	}
	return w, s
}

// BenchmarkCluster: one decision about 4,000 servers and 400 models: all is quiet, no server is there yet, and all models have new files.
func BenchmarkCluster(b *testing.B) {
	for _, state := range []string{"quiet", "start", "update"} {
		b.Run(state, func(b *testing.B) {
			w, s := cluster(4000, 400, state == "update")
			if state == "start" {
				s.Servers = nil
			}
			for b.Loop() {
				decide.Decide(w, s, t0)
			}
		})
	}
}
