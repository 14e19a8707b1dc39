// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package pack

import "github.com/conch-serving/conch/plugins/policy"

// known is what the rules ask about a model for every place that it is tried in. It does not change while a floor is filled, so that clones share it.
type known struct {
	name string
	rule *policy.Rule
	// onCPU: an operator who names GPUs does not mean CPUs.
	onCPU bool
	// needs are the model and those that it calls; a derived model alone.
	needs []*known
	// members of a derived model; nil: it is a model, or its recipe has none.
	members []*known
	derived bool
	// limit is its largest batch; weights and working are what an instance of that takes.
	limit            uint32
	weights, working uint64
	// inTime is, by type of host and share, whether a single row makes its SLO there or makes it nowhere.
	inTime []answer
}

// answer is a fact that is found out when it is asked for.
type answer uint8

const (
	notAsked answer = iota
	yes
	no
)

// known of a model, or of a derived model that the floor was told of.
func (f *Floor) known(model string) *known {
	if k, ok := f.derived[model]; ok {
		return k
	}
	if k, ok := f.models[model]; ok {
		return k
	}
	k := f.read(model)
	f.models[model] = k
	k.needs = []*known{k}
	if len(f.Model(model).GetDependsOn()) > 0 {
		k.needs = nil
		for _, m := range f.Requires(model) {
			k.needs = append(k.needs, f.known(m.GetName()))
		}
	}
	return k
}

// read is what is known of a model, but for what it calls.
func (f *Floor) read(model string) *known {
	k := &known{name: model, rule: f.Rule(model), limit: f.maxBatch(model), inTime: make([]answer, len(f.types)*shares)}
	_, restricted := k.rule.GPUs()
	k.onCPU = !restricted
	k.weights, k.working = f.InstanceBytes(f.recipes, &policy.Instance{Model: model, MaxBatch: k.limit})
	return k
}

// shares of a host that there are, none included.
const shares = 101

// batch that an instance has of which so much is asked; 0 is the model's own maximum.
func (k *known) batch(batch uint32) uint32 {
	if batch == 0 {
		return k.limit
	}
	return min(batch, k.limit)
}

// bytes of an instance: its weights, and the working memory of its batch.
func (f *Floor) bytesOf(k *known, batch uint32) (weights, working uint64) {
	if batch == k.limit {
		return k.weights, k.working
	}
	return f.InstanceBytes(f.recipes, &policy.Instance{Model: k.name, MaxBatch: batch})
}

// makesIt reports whether a single row of the model makes its SLO on a share of a host, or makes it nowhere.
func (f *Floor) makesIt(k *known, h *Host, share uint32) bool {
	at := &k.inTime[h.kind*shares+int(share)]
	if *at == notAsked {
		*at = no
		if f.Meets(k.name, h.Type, share) || f.Hopeless(k.name) {
			*at = yes
		}
	}
	return *at == yes
}
