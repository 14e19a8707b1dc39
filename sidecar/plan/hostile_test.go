// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/plan"
)

// fill sets every string that a message can have to text, lists and maps with one element.
func fill(m protoreflect.Message, text string, path string, visit func(path string, set func(string))) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		at := path + "." + string(f.Name())
		switch {
		case f.IsMap():
			if f.MapKey().Kind() == protoreflect.StringKind && f.MapValue().Kind() == protoreflect.StringKind {
				visit(at, func(s string) {
					m.Mutable(f).Map().Set(protoreflect.ValueOfString(s).MapKey(), protoreflect.ValueOfString(s))
				})
			}
		case f.IsList() && f.Kind() == protoreflect.MessageKind:
			list := m.Mutable(f).List()
			list.AppendMutable()
			fill(list.Get(list.Len()-1).Message(), text, at, visit)
		case f.IsList() && f.Kind() == protoreflect.StringKind:
			visit(at, func(s string) { m.Mutable(f).List().Append(protoreflect.ValueOfString(s)) })
		case f.Kind() == protoreflect.MessageKind && !f.IsList():
			if strings.HasPrefix(string(f.Message().FullName()), "google.protobuf") {
				continue
			}
			fill(m.Mutable(f).Message(), text, at, visit)
		case f.Kind() == protoreflect.StringKind:
			visit(at, func(s string) { m.Set(f, protoreflect.ValueOfString(s)) })
		}
	}
}

// TestEveryTextIsBounded: whatever text of a plan is long, it is refused for that, in a few words.
func TestEveryTextIsBounded(t *testing.T) {
	s := &policy.Snapshot{Models: []*policy.Model{{Name: "a"}, {Name: "b"}}, Apps: []*policy.App{{Name: "app"}}, Nodes: []*policy.Node{{Name: "n", Gpus: []*policy.GPU{{Id: "g"}}}}}
	var paths []string
	fill((&policy.Plan{}).ProtoReflect(), "", "plan", func(path string, _ func(string)) { paths = append(paths, path) })
	require.Greater(t, len(paths), 20)
	for _, path := range paths {
		t.Run(path, func(t *testing.T) {
			p := &policy.Plan{}
			fill(p.ProtoReflect(), "", "plan", func(at string, set func(string)) {
				if at == path {
					set(strings.Repeat("x", 1<<20))
				}
			})
			violations := plan.Validate(s, p)
			require.Equal(t, plan.CodeExcess, violations[0].Code, "%.300s", violations.Error())
			require.Less(t, len(violations.Error()), 1000)
		})
	}
}

// TestViolationsAreBounded: a plan in which everything is wrong gets a list that a person can read.
func TestViolationsAreBounded(t *testing.T) {
	s := &policy.Snapshot{}
	for i := range 100 {
		s.Models = append(s.Models, &policy.Model{Name: fmt.Sprint("m", i), Rate: 1})
		s.Nodes = append(s.Nodes, &policy.Node{Name: fmt.Sprint("n", i), Gpus: []*policy.GPU{{Id: fmt.Sprint("g", i)}}})
	}
	p := &policy.Plan{}
	for i := range 1000 {
		part := &policy.Partition{Id: strings.Repeat("/", 200), Node: fmt.Sprint("n", i%100), Gpus: []string{fmt.Sprint("g", i%100)}}
		for j := range 50 {
			part.Instances = append(part.Instances, policy.ModelInstance(fmt.Sprint(strings.Repeat("y", 200), j), 8))
		}
		p.Partitions = append(p.Partitions, part)
	}
	violations := plan.Validate(s, p)
	require.NotEmpty(t, violations)
	require.LessOrEqual(t, len(violations), 201)
	require.Less(t, len(violations.Error()), 256<<10)
	require.Contains(t, violations[len(violations)-1].Text, "more")
}

// TestNothingUnprintable: terminals obey what some characters say, and people read others from the right.
func TestNothingUnprintable(t *testing.T) {
	const odd = "a\nb" // which is a model's name, of an operator's own choice
	s := &policy.Snapshot{Models: []*policy.Model{{Name: "a"}, {Name: odd}}, Apps: []*policy.App{{Name: "app"}}, Nodes: []*policy.Node{{Name: "n", Gpus: []*policy.GPU{{Id: "g"}}}}}
	fill((&policy.Plan{}).ProtoReflect(), "", "plan", func(path string, _ func(string)) {
		for _, text := range []string{"\x1b[2J", "\u202egood", "a\rb", "a\x00"} {
			p := &policy.Plan{}
			fill(p.ProtoReflect(), "", "plan", func(at string, set func(string)) {
				if at == path {
					set(text)
				}
			})
			violations := plan.Validate(s, p)
			require.NotContains(t, violations.Error(), text, path)
			require.Contains(t, violations.Error(), "cannot be shown", path)
		}
	})
	p := &policy.Plan{
		Partitions: []*policy.Partition{{Id: "p", Node: "n", Gpus: []string{"g"}, ThreadPercentage: 100, Instances: []*policy.Instance{policy.ModelInstance(odd, 1)}}},
		Reasons:    []*policy.Reason{{Model: odd, Text: "first\n\tsecond, größer"}},
	}
	require.Empty(t, plan.Validate(s, p))
}
