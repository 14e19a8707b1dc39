// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/admin"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/apply"
	"github.com/conch-serving/conch/sidecar/control"
	"github.com/conch-serving/conch/sidecar/watch"
)

// looked is a plan way that is looked at, and no more.
type looked struct {
	admin.Control
	look control.Look
}

// Look implements admin.Seen.
func (l looked) Look() control.Look { return l.look }

// CurrentPlan implements admin.Control.
func (l looked) CurrentPlan() control.Plan { return l.look.Plan }

// Held implements admin.Control.
func (l looked) Held() *api.Held { return nil }

// OfCluster implements admin.Control.
func (l looked) OfCluster() []api.Condition { return nil }

// clusterLook is a look at so many GPUs, four a node, each with a partition of ten models.
func clusterLook(gpus int) control.Look {
	p := &policy.Plan{}
	l := control.Look{Servers: map[string]apply.PartitionState{}, BusyShares: map[string]float64{}}
	for i := range gpus {
		if i%4 == 0 {
			l.Nodes = append(l.Nodes, &policy.Node{Name: fmt.Sprintf("node-%04d", i/4)})
		}
		n := l.Nodes[len(l.Nodes)-1]
		gpu := fmt.Sprintf("%s-gpu%d", n.GetName(), i%4)
		n.Gpus = append(n.Gpus, &policy.GPU{Id: gpu, Type: "X", MemoryBytes: 80 << 30})
		part := &policy.Partition{Id: gpu, Node: n.GetName(), Gpus: []string{gpu}, ThreadPercentage: 100, Rank: uint32(i)}
		state := apply.PartitionState{ID: gpu, Up: true}
		for k := range 10 {
			model := fmt.Sprintf("m%03d", (10*i+k)%400)
			part.Instances, state.Models = append(part.Instances, policy.ModelInstance(model, 8)), append(state.Models, model)
		}
		p.Partitions = append(p.Partitions, part)
		l.Servers[gpu] = state
	}
	l.Plan.Plan = p
	return l
}

// BenchmarkCluster: what operators are shown of 4,000 GPUs, and what a new watcher of them is sent.
func BenchmarkCluster(b *testing.B) {
	l := clusterLook(4000)
	b.Run("gpus", func(b *testing.B) {
		for b.Loop() {
			admin.GPUs(l)
		}
	})
	topics := []api.Topic{api.TopicGPUs, api.TopicPartitions, api.TopicPlan}
	b.Run("watch", func(b *testing.B) {
		for b.Loop() {
			var sources []watch.Source
			for _, s := range admin.Sources(admin.Of(looked{look: l}, nil, nil)) {
				if s.Topic == topics[0] || s.Topic == topics[1] || s.Topic == topics[2] {
					sources = append(sources, s)
				}
			}
			hub := watch.New(watch.Options{Sources: sources, Epoch: "e", Now: time.Now, Logger: slog.New(slog.DiscardHandler)})
			w, err := hub.Watch(topics, "")
			require.NoError(b, err)
			<-w.Ready()
			_, end := w.Take()
			require.Nil(b, end)
			w.Close()
			hub.Stop(time.Minute)
		}
	})
}
