// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
)

// layout is a plan in short: which partitions there are and which models they serve. Its text is "gpu0.0:50=a+b gpu0.1:50=b", by name.
type layout []cut

// cut is a partition "GPU.NUMBER" with its share, the memory that it may take (0: it does not say), and its models.
type cut struct {
	partition string
	share     uint32
	memory    uint64
	models    []string
}

func (c cut) String() string {
	memory := ""
	if c.memory > 0 {
		memory = fmt.Sprintf(":%d", c.memory)
	}
	return fmt.Sprintf("%s:%d%s=%s", c.partition, c.share, memory, strings.Join(c.models, "+"))
}

// process names the server of a partition: the same one serves two layouts that both have it.
func (c cut) process() string { return fmt.Sprintf("%s:%d:%d", c.partition, c.share, c.memory) }

func (l layout) String() string {
	var words []string
	for _, c := range l {
		words = append(words, c.String())
	}
	return strings.Join(words, " ")
}

func (l layout) sorted() layout {
	for _, c := range l {
		slices.Sort(c.models)
	}
	slices.SortFunc(l, func(a, b cut) int { return strings.Compare(a.partition, b.partition) })
	return l
}

func (l layout) models() map[string]bool {
	all := map[string]bool{}
	for _, c := range l {
		for _, m := range c.models {
			all[m] = true
		}
	}
	return all
}

// served are the models that clients may ask for while plans change.
type served struct {
	models []string
	now    atomic.Pointer[[]string]
}

// byAll has those asked for that all the layouts serve.
func (s *served) byAll(layouts ...layout) {
	names := slices.DeleteFunc(slices.Clone(s.models), func(m string) bool {
		return slices.ContainsFunc(layouts, func(l layout) bool { return !l.models()[m] })
	})
	s.now.Store(&names)
}

func (s *served) names() []string { return *s.now.Load() }

func parseLayout(text string) (l layout, err error) {
	for word := range strings.FieldsSeq(text) {
		place, models, found := strings.Cut(word, "=")
		fields := strings.Split(place, ":")
		c := cut{partition: fields[0]}
		if found && models != "" {
			c.models = strings.Split(models, "+")
		}
		if len(fields) > 1 {
			_, err = fmt.Sscan(fields[1], &c.share)
		}
		if len(fields) > 2 && err == nil {
			_, err = fmt.Sscan(fields[2], &c.memory)
		}
		if err != nil || !found {
			return nil, fmt.Errorf("layout: %q is no partition: %w", word, err)
		}
		l = append(l, c)
	}
	return l, nil
}

// plan is the layout as an answer to a snapshot.
func (l layout) plan(s *policy.Snapshot) *policy.Plan {
	node := ""
	if len(s.GetNodes()) > 0 { // the snapshot of a rehearsal has none
		node = s.GetNodes()[0].GetName()
	}
	p := &policy.Plan{SnapshotRevision: s.GetRevision(), Policy: "moody", PolicyVersion: "1"}
	for _, c := range l {
		gpu, _, _ := strings.Cut(c.partition, ".")
		part := &policy.Partition{
			Id: c.partition, Node: node, Gpus: []string{gpu}, ThreadPercentage: c.share, MemoryLimitBytes: c.memory,
		}
		for _, m := range c.models {
			part.Instances = append(part.Instances, policy.ModelInstance(m, 0))
		}
		p.Partitions = append(p.Partitions, part)
	}
	placed := l.models()
	for _, m := range s.GetModels() {
		if placed[m.GetName()] {
			p.Dispatch = append(p.Dispatch, &policy.Dispatch{Model: m.GetName(), Discipline: "eager"})
		} else {
			p.Unplaced = append(p.Unplaced, &policy.Unplaced{Model: m.GetName(), Text: "the layout has no place for it"})
		}
	}
	return p
}

// layoutOf is the layout of a plan that conch shows.
func layoutOf(t *testing.T, p api.Plan) layout {
	t.Helper()
	var plan policy.Plan
	require.NoError(t, protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(p.Plan, &plan))
	var l layout
	for _, part := range plan.GetPartitions() {
		c := cut{partition: part.GetId(), share: part.GetThreadPercentage(), memory: part.GetMemoryLimitBytes()}
		for _, in := range part.GetInstances() {
			c.models = append(c.models, in.GetModel())
		}
		l = append(l, c)
	}
	return l.sorted()
}

// randomLayout cuts GPUs and places models. The first model is always somewhere, so that there is something to ask for.
func randomLayout(random *rand.Rand, gpus int, models []string) layout {
	var l layout
	for gpu := range gpus {
		for i, share := range [][]uint32{{100}, {50, 50}, {30, 70}, {70, 30}}[random.IntN(4)] {
			l = append(l, cut{partition: fmt.Sprintf("gpu%d.%d", gpu, i), share: share})
		}
	}
	for i, model := range models {
		for n := random.IntN(3); n > 0 || i == 0 && !l.models()[model]; n-- {
			if at := &l[random.IntN(len(l))]; !slices.Contains(at.models, model) {
				at.models = append(at.models, model)
			}
		}
	}
	return slices.DeleteFunc(l, func(c cut) bool { return len(c.models) == 0 }).sorted()
}

// order has conch apply a layout, and waits until its servers have come to it or the plan was superseded.
func order(t *testing.T, a *client.Client, l layout) (api.ApplyResult, error) {
	t.Helper()
	if _, err := a.UsePolicy(t.Context(), api.UsePolicyRequest{Name: "moody", Parameters: map[string]string{"layout": l.String()}}); err != nil {
		return api.ApplyResult{}, err
	}
	return a.Apply(t.Context(), api.ApplyRequest{Reason: l.String()})
}

// layoutSettings has moody plan a layout, and nothing else be applied than what is ordered.
func layoutSettings(t *testing.T, l layout) map[string]any {
	t.Helper()
	settings := moodySettings(t)
	settings["mode"] = "advise"
	settings["policy"].(map[string]any)["parameters"] = map[string]any{"layout": l.String()}
	return settings
}
