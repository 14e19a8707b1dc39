// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package static_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/conformance"
	"github.com/conch-serving/conch/plugins/policy/pack/packtest"
	"github.com/conch-serving/conch/plugins/static"
)

func TestConformance(t *testing.T) {
	for name, parameters := range map[string]map[string]string{
		"defaults": nil,
		"placed": {
			"placement":   "model0 = gpu1, gpu0.1, gpu9; model3 = gpu0; unknown = gpu0",
			"partitions":  "gpu0 = 30, 70; * = 50, 25, 25",
			"disciplines": "model1 = eager",
		},
	} {
		t.Run(name, func(t *testing.T) {
			conformance.Run(t, conformance.Options{
				New:        func(*testing.T) policy.Policy { return static.New() },
				Parameters: parameters,
			})
		})
	}
}

func TestGolden(t *testing.T) { packtest.Golden(t, static.New(), "testdata") }

func TestBadParameters(t *testing.T) {
	for _, test := range []struct{ name, value, want string }{
		{"discipline", "lazy", "adaptive, deferred, eager, timeout, duty-cycle, target"},
		{"disciplines", "resnet50 = lazy", "not a dispatch discipline"},
		{"disciplines", "resnet50 = eager, adaptive", "one value is wanted"},
		{"drop_policy", "all", "window, prefix, thrift, reserve, none"},
		{"partitions", "gpu0 = 50, 60", "add up to 110"},
		{"partitions", "gpu0 = 0", "from 1 to 100"},
		{"partitions", "gpu0 = half", "from 1 to 100"},
		{"placement", "resnet50", "NAME = ITEM"},
		{"placement", "resnet50 = gpu0,", "empty item"},
		{"placement", "resnet50 = gpu0; resnet50 = gpu1", "given twice"},
		{"placement", `{"resnet50": ["gpu0", ""]}`, "empty name or item"},
		{"placement", `{"resnet50": []}`, "empty name or item"},
		{"placement", `{"resnet50": {"gpu0": 1}}`, "neither a word nor a number"},
		{"placement", `{"resnet50": "gpu0"`, "is not JSON"},
		{"partitions", `{"gpu0": [50, 60]}`, "add up to 110"},
		{"disciplines", `{"resnet50": "lazy"}`, "not a dispatch discipline"},
		{"dispatch_parameters", "= 5", "NAME = ITEM"},
		{"dispatch_parameters", "lazy.delay = 5", "not a dispatch discipline"},
	} {
		t.Run(test.name+" "+test.value, func(t *testing.T) {
			_, err := static.New().Plan(t.Context(), &policy.Snapshot{Parameters: map[string]string{test.name: test.value}}, policy.NoEvaluation{})
			require.ErrorContains(t, err, test.want)
			require.ErrorContains(t, err, "parameter "+test.name)
		})
	}
}

// TestMappings: a mapping of conch.yaml, which comes as JSON, means what its one line of text does.
func TestMappings(t *testing.T) {
	text, err := os.ReadFile("testdata/placed.snapshot.txtpb")
	require.NoError(t, err)
	var written policy.Snapshot
	require.NoError(t, prototext.Unmarshal(text, &written))
	mapped := proto.CloneOf(&written)
	written.Parameters = map[string]string{"partitions": "gpu1 = 40, 60", "placement": "bert = gpu0; resnet50 = gpu0, gpu1.1", "disciplines": "bert = deferred"}
	mapped.Parameters = map[string]string{"partitions": `{"gpu1": [40, 60]}`, "placement": `{"resnet50": ["gpu0", "gpu1.1"], "bert": "gpu0"}`, "disciplines": `{"bert": "deferred"}`}
	want, err := static.New().Plan(t.Context(), &written, policy.NoEvaluation{})
	require.NoError(t, err)
	got, err := static.New().Plan(t.Context(), mapped, policy.NoEvaluation{})
	require.NoError(t, err)
	require.True(t, proto.Equal(want, got), "want:\n%s\ngot:\n%s", prototext.Format(want), prototext.Format(got))
	require.Contains(t, prototext.Format(got), "gpu1.1")
}

// TestDescribedValues: what its description says of disciplines and drop policies is enough to refuse a wrong one before it is in use.
func TestDescribedValues(t *testing.T) {
	d, err := static.New().Describe(t.Context())
	require.NoError(t, err)
	for _, name := range []string{"discipline", "drop_policy"} {
		_, err = d.Resolve(map[string]string{name: "lazy"})
		require.ErrorContains(t, err, `policy static, parameter `+name+`: "lazy" is none of its values; there are: `)
	}
	for _, discipline := range d.GetDisciplines() {
		_, err = d.Resolve(map[string]string{"discipline": discipline})
		require.NoError(t, err)
	}
}

// What a person writes must not bring the policy down, and what it accepts must
// give a good plan.
func FuzzParameters(f *testing.F) {
	f.Add("resnet50 = gpu0, gpu1; bert = gpu2.1", "gpu0 = 50, 50; * = 100", "max_queue_delay_us = 500")
	f.Add("a=b\nc=d", "*=1", "")
	f.Add(`{"resnet50": ["gpu0", 1]}`, `{"gpu0": [50, 5e1]}`, `{"": null}`)
	f.Add(";;=", "gpu0=4294967296", "=,")
	f.Fuzz(func(t *testing.T, placement, partitions, dispatch string) {
		s := &policy.Snapshot{
			Revision: 1,
			Nodes:    []*policy.Node{{Name: "n", Gpus: []*policy.GPU{{Id: "gpu0"}, {Id: "gpu1", Index: 1}}}},
			Models:   []*policy.Model{{Name: "resnet50"}, {Name: "bert", Rate: 1}},
			Parameters: map[string]string{
				"placement": placement, "partitions": partitions, "dispatch_parameters": dispatch,
			},
		}
		p, err := static.New().Plan(t.Context(), s, policy.NoEvaluation{})
		if err != nil {
			return
		}
		require.Empty(t, conformance.Check(s, p))
	})
}

// Equal GPUs of two nodes, each full with one model: no node has all places of a model.
func TestPlacesOfAModelAreOnSeveralNodes(t *testing.T) {
	s := packtest.World(4).OnTwoNodes().Line("a", 1, 4, 40, 1).Line("b", 1, 4, 40, 1).Snapshot
	for _, m := range s.Models {
		m.MemoryBytes = 12 << 30
		s.Constraints = append(s.Constraints, &policy.Constraint{Model: m.Name, MinInstances: 2})
	}
	p, err := static.New().Plan(t.Context(), s, policy.NoEvaluation{})
	require.NoError(t, err)
	require.Empty(t, conformance.Check(s, p))
	for _, m := range s.Models {
		require.ElementsMatch(t, []string{"m", "n"}, packtest.NodesOf(p, m.Name), m.Name)
	}
}

// Equal GPUs, more models than one holds: as many models as possible get a
// place before any gets a second one.
func TestEveryModelGetsAPlaceFirst(t *testing.T) {
	s := &policy.Snapshot{Revision: 1, Nodes: []*policy.Node{{Name: "n", Gpus: []*policy.GPU{
		{Id: "gpu0", MemoryBytes: 10}, {Id: "gpu1", Index: 1, MemoryBytes: 10},
	}}}}
	for _, name := range []string{"a", "b", "c", "d"} {
		s.Models = append(s.Models, &policy.Model{Name: name, MemoryBytes: 5, Rate: 1})
	}
	p, err := static.New().Plan(t.Context(), s, policy.NoEvaluation{})
	require.NoError(t, err)
	require.Empty(t, p.GetUnplaced())
	for _, m := range s.Models {
		require.Len(t, p.PartitionsOf(m.Name), 1)
	}
}
