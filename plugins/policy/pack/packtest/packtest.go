// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package packtest is what tests of policies share: small worlds, worlds in which every profile says all that a policy may need, and golden
// plans.
package packtest

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/conformance"
)

var update = flag.Bool("update", false, "write golden plans")

// Builder makes a world step by step.
type Builder struct{ *policy.Snapshot }

// World has so many GPUs of type X with 16 GiB, on one node.
func World(gpus int) Builder {
	s := &policy.Snapshot{Revision: 1, Seed: 1, Nodes: []*policy.Node{{Name: "n"}}}
	for i := range gpus {
		s.Nodes[0].Gpus = append(s.Nodes[0].Gpus, &policy.GPU{
			Id: fmt.Sprintf("gpu%d", i), Type: "X", Index: uint32(i), MemoryBytes: 16 << 30, CostPerHour: 1, Emulated: true, SharesEnforced: true,
		})
	}
	return Builder{s}
}

// OnTwoNodes moves the second half of the GPUs to a node of their own, "m".
func (b Builder) OnTwoNodes() Builder {
	all := b.Nodes[0].Gpus
	b.Nodes = append(b.Nodes, &policy.Node{Name: "m", Gpus: all[len(all)/2:]})
	b.Nodes[0].Gpus = all[:len(all)/2]
	return b
}

// NodesOf are the nodes on which a plan has a model, one for each of its places.
func NodesOf(p *policy.Plan, model string) (nodes []string) {
	for _, part := range p.PartitionsOf(model) {
		nodes = append(nodes, part.GetNode())
	}
	return nodes
}

// Line adds a model of l(b) = alpha*b + beta milliseconds on a whole GPU, which slows in proportion to what it lacks of its knee, with an SLO
// in milliseconds and a rate. It has 1 GiB.
func (b Builder) Line(name string, alpha, beta, slo, rate float64) Builder {
	return b.Shaped(name, alpha, beta, slo, rate, 100)
}

// Shaped is Line for a model that needs only so many percent of a GPU: from its knee on more gains nothing.
func (b Builder) Shaped(name string, alpha, beta, slo, rate float64, knee uint32) Builder {
	b.Models = append(b.Models, &policy.Model{
		Name: name, SloUs: int64(slo * 1e3), Rate: rate, RowRate: rate, Burstiness: 1, MaxBatchSize: 32, Batchable: true, MemoryBytes: 1 << 30,
	})
	p := &policy.Profile{Model: name, GpuType: "X", Usable: true, Source: policy.ProfileSource_PROFILE_SOURCE_DECLARED}
	for _, share := range []uint32{20, 40, 50, 60, 80, 100} {
		slow := math.Max(1, float64(knee)/float64(share))
		for _, batch := range []uint32{1, 2, 4, 8, 16, 32} {
			l := (alpha*float64(batch) + beta) * 1e3 * slow
			fill := math.Min(1, float64(batch)/16)
			p.Points = append(p.Points, &policy.ProfilePoint{
				Batch: batch, ThreadPercentage: share, LatencyUs: &policy.Estimate{Value: l}, LatencyUpperUs: l,
				Creq: &policy.Estimate{Value: .2 + .5*fill}, Mreq: &policy.Estimate{Value: .1},
				BandwidthUtilization: &policy.Estimate{Value: .1 + .3*fill}, L2Utilization: &policy.Estimate{Value: .1 + .2*fill},
			})
		}
	}
	b.Profiles = append(b.Profiles, p)
	return b
}

// Interfering adds gpulet's published coefficients (its artifact's, for the 2080 Ti).
func (b Builder) Interfering() Builder {
	b.Interference = append(b.Interference, policy.GpuletInterference("X"))
	return b
}

// Profiled makes the worlds of the conformance suite with usable profiles of every model on every type, which know creq, mreq, bandwidth and
// L2, and with interference coefficients: worlds that meet every need but those for variants, derived models and evaluations.
func Profiled() *rapid.Generator[*policy.Snapshot] {
	return rapid.Custom(func(t *rapid.T) *policy.Snapshot {
		s := conformance.Snapshots().Draw(t, "world")
		s.Profiles = nil
		for _, m := range s.Models {
			for _, gpuType := range []string{"A100-80GB", "T4"} {
				alpha, beta := rapid.Float64Range(10, 3000).Draw(t, "alpha"), rapid.Float64Range(100, 20_000).Draw(t, "beta")
				creq := rapid.Float64Range(.05, 1).Draw(t, "creq")
				p := &policy.Profile{Model: m.Name, GpuType: gpuType, Usable: true, Source: policy.ProfileSource_PROFILE_SOURCE_ESTIMATED}
				for _, share := range []uint32{20, 50, 100} {
					for _, batch := range []uint32{1, 8, 64} {
						l := (alpha*float64(batch) + beta) * math.Max(1, 100*creq/float64(share))
						p.Points = append(p.Points, &policy.ProfilePoint{
							Batch: batch, ThreadPercentage: share, LatencyUs: &policy.Estimate{Value: l, ErrorBound: l / 10}, LatencyUpperUs: l * 1.05,
							Creq: &policy.Estimate{Value: creq}, Mreq: &policy.Estimate{Value: .1},
							BandwidthUtilization: &policy.Estimate{Value: creq / 2}, L2Utilization: &policy.Estimate{Value: creq / 3},
						})
					}
				}
				s.Profiles = append(s.Profiles, p)
			}
		}
		for _, gpuType := range []string{"A100-80GB", "T4"} {
			s.Interference = append(s.Interference, &policy.Interference{GpuType: gpuType, L2Other: .7, BandwidthSelf: .3, Constant: .9})
		}
		return s
	})
}

// Golden answers every DIR/NAME.snapshot.txtpb by DIR/NAME.plan.txtpb.
func Golden(t *testing.T, p policy.Policy, dir string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.snapshot.txtpb"))
	require.NoError(t, err)
	require.NotEmpty(t, paths, "golden snapshots in %s", dir)
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".snapshot.txtpb"), func(t *testing.T) {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			s := &policy.Snapshot{}
			require.NoError(t, prototext.Unmarshal(text, s))
			got, err := p.Plan(t.Context(), s, policy.NoEvaluation{})
			require.NoError(t, err)
			require.Empty(t, conformance.Check(s, got))
			golden := strings.Replace(path, ".snapshot.", ".plan.", 1)
			if *update {
				written := prototext.MarshalOptions{Multiline: true, Indent: "  "}.Format(got)
				require.NoError(t, os.WriteFile(golden, []byte(written), 0o644)) //nolint:gosec // a test's own file
			}
			text, err = os.ReadFile(golden)
			require.NoError(t, err)
			want := &policy.Plan{}
			require.NoError(t, prototext.Unmarshal(text, want))
			require.True(t, proto.Equal(want, got), "want:\n%s\ngot:\n%s", prototext.Format(want), prototext.Format(got))
		})
	}
}
