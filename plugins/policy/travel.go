// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policy

// edges calls visit for every two steps of a pipeline of which one takes tensors of the other, with the bytes per second that were measured.
func (s *Snapshot) edges(visit func(from, to string, bytes float64)) {
	for _, p := range s.GetPipelines() {
		requests := p.GetRate() * max(1, p.GetRows())
		for _, step := range p.GetSteps() {
			for k, bytes := range step.GetTakenBytes() {
				if before := step.GetAfter()[k]; bytes > 0 && requests > 0 {
					visit(p.GetSteps()[before].GetModel(), step.GetModel(), requests*bytes)
				}
			}
		}
	}
}

// Travel is how many bytes per second of the tensors between steps of pipelines go from one node to another under a plan, by the bytes that were measured, if
// each model's requests are divided evenly over its places.
func (s *Snapshot) Travel(p *Plan) (bytes float64) {
	places := make(map[string]map[string]float64) // by model, then node
	on := func(model string) map[string]float64 {
		if places[model] == nil {
			places[model] = make(map[string]float64)
			parts := p.PartitionsOf(model)
			for _, part := range parts {
				places[model][part.GetNode()] += 1 / float64(len(parts))
			}
		}
		return places[model]
	}
	s.edges(func(from, to string, each float64) {
		if len(on(from)) == 0 || len(on(to)) == 0 {
			return
		}
		stays := 0.
		for node, share := range on(from) {
			stays += share * on(to)[node]
		}
		bytes += each * max(0, 1-stays)
	})
	return bytes
}

// Near is how many bytes per second of tensors between steps of pipelines a model exchanges with models that are on a node, by the bytes that were
// measured; on says which part of a model's places is there.
func (s *Snapshot) Near(model string, on func(other string) float64) (bytes float64) {
	s.edges(func(from, to string, each float64) {
		switch {
		case from == to:
		case from == model:
			bytes += each * on(to)
		case to == model:
			bytes += each * on(from)
		}
	})
	return bytes
}
