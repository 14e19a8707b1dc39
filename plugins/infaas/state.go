// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package infaas

import (
	"encoding/json"

	"github.com/conch-serving/conch/plugins/policy"
)

// States of a variant's instance (figure 4). One that is not loaded is inactive, and is not kept.
const (
	active     = "active"
	overloaded = "overloaded"
	interfered = "interfered"
)

// The paper's code calls an instance interfered at 1.5 times its profile while it serves more than .3 of what it can, and no longer at 1.25.
const (
	interferedFrom  = 1.5
	interferedUntil = 1.25
	interferedLoad  = .3
)

// state is what the policy remembers from one tick to the next.
type state struct {
	// Instances by partition and model.
	Instances map[string]map[string]string `json:"instances,omitempty"`
	// Ticks in a row in which an app could have done with less.
	Ticks map[string]int `json:"ticks,omitempty"`
}

// readState of the last answer. What does not parse is as good as none: it is an older version's.
func readState(s *policy.Snapshot) state {
	var last state
	if json.Unmarshal(s.GetPolicyState(), &last) != nil {
		return state{}
	}
	return last
}

func (s state) bytes() []byte {
	// Maps of strings and numbers always marshal, with sorted keys.
	text, _ := json.Marshal(s)
	if len(text) > policy.MaxStateBytes {
		return nil
	}
	return text
}

// observe is the state machine: from the state of the last tick and what was observed since to the present state of every instance in force.
func (r *run) observe(last state) map[string]map[string]string {
	all := make(map[string]map[string]string)
	for _, o := range r.s.GetObservations() {
		c := r.running(o.GetPartition(), o.GetModel())
		if c == nil || !o.GetReady() {
			continue
		}
		now := active
		expected, known := r.f.UsableProfile(o.GetModel(), c.gpuType).Latency(uint32(max(1, o.GetMeanBatch())), c.share)
		slower := 0.0
		if known && expected > 0 {
			slower = o.GetLatencyP50Us() / expected
		}
		was := last.Instances[o.GetPartition()][o.GetModel()]
		switch {
		case o.GetRowRate()*(1+r.set.slack) >= c.rate:
			now = overloaded
		case o.GetInterfered(), slower > interferedFrom && o.GetRowRate() > interferedLoad*c.rate, was == interfered && slower >= interferedUntil:
			now = interfered
		}
		if all[o.GetPartition()] == nil {
			all[o.GetPartition()] = make(map[string]string)
		}
		all[o.GetPartition()][o.GetModel()] = now
	}
	return all
}

// running is the candidate that an instance in force is one of; nil where it is none.
func (r *run) running(partition, model string) *candidate {
	for _, part := range r.s.GetCurrent().GetPartitions() {
		if part.GetId() != partition {
			continue
		}
		for _, a := range r.apps {
			for _, c := range a.candidates {
				if c.model == model && c.gpuType == r.f.TypeOf(part) && c.share == part.GetThreadPercentage() {
					return c
				}
			}
		}
	}
	return nil
}
