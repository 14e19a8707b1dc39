// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conch

import (
	"math"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/exact"
)

// exactly is a layout in which every rate fits into rounds that meet the SLOs, with as much headroom as there is of what is tried; nil where the
// exact search finds none, or where the world is not for it: it is small, with GPUs of one type, and without constraints.
func (w *world) exactly() *layout {
	s := &policy.Snapshot{Revision: w.s.GetRevision(), Nodes: w.s.GetNodes(), Profiles: w.s.GetProfiles(), Interference: w.s.GetInterference(), Constraints: w.s.GetConstraints()}
	rates := make(map[string]float64)
	for _, m := range w.s.GetModels() {
		rate := math.Max(m.GetRate(), m.GetRowRate())
		if rate <= 0 {
			continue // it gets a place where there is room
		}
		rates[m.GetName()] = rate
		s.Models = append(s.Models, proto.CloneOf(m))
	}
	for _, headroom := range headrooms() {
		for _, parts := range divisions() {
			if len(rates) > largest(parts) {
				continue
			}
			asked, units := make(map[string]float64), make(map[string]float64)
			for name, rate := range rates {
				asked[name], units[name] = headroom*rate, headroom*rate/float64(parts)
			}
			x, err := exact.New(s, exact.Options{Unit: 1, Units: units, Most: parts, Steps: steps})
			if err != nil {
				return nil // the next one would be refused too
			}
			if l := w.found(x, asked); l != nil {
				return l
			}
		}
	}
	return nil
}

// steps of one search, of which there are a few for each plan: some tenths of a second, and four times what the mixes of sidecar/sim/schedulability take.
const steps = 4 << 20

// headrooms are by how much rates are raised: bursts need it, and less is better than nothing.
func headrooms() []float64 { return []float64{1.25, 1} }

// divisions are into how many parts a rate may be divided: few are quick, more may fit where few do not.
func divisions() []int { return []int{2, 4} }

// largest is how many models the search takes with so many parts: its work grows with the power.
func largest(parts int) int {
	if parts > 2 {
		return 9
	}
	return 10
}

// found is a schedule as a layout.
func (w *world) found(x *exact.World, asked map[string]float64) *layout {
	load, err := x.Load(asked)
	if err != nil {
		return nil
	}
	schedule, ok := x.Find(load)
	if !ok {
		return nil
	}
	l := &layout{disciplines: make(map[string]string)}
	host := -1
	for _, parts := range schedule {
		for host++; host < len(w.empty.Hosts) && w.empty.Hosts[host].OnCPU(); host++ {
		}
		for _, p := range parts {
			if len(p.Turns) == 0 {
				continue
			}
			placed := part{host: host, share: p.Size}
			for _, t := range p.Turns {
				placed.add(t.Model)
			}
			l.parts = append(l.parts, placed)
		}
	}
	return l
}
