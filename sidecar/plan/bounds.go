// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"unicode"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/conch-serving/conch/plugins/policy"
)

// What a plan may say at the most. A policy is not trusted, and what judges its
// plan, shows it and keeps it walks every list: the time and memory for that are
// bounded here, before anything is walked.
const (
	// maxPartitionsPerHost: a share is at least one percent of a GPU or of a node's
	// CPUs.
	maxPartitionsPerHost = 100
	// maxRemarks per model, and again per partition: reasons, predictions, refusals.
	maxRemarks = 16
	// maxName and maxText are bytes of one name and of one sentence.
	maxName, maxText = 256, 4096
	// maxParameters of one dispatch entry, and refusals of one unplaced model.
	maxParameters = 64
	// maxViolations are enough to see what is wrong.
	maxViolations = 200
)

// excess finds what a plan says too much of.
func (v *validator) excess() {
	var hosts int
	for _, n := range v.s.GetNodes() {
		hosts += len(n.GetGpus())
		if n.GetCpu() != nil {
			hosts++
		}
	}
	models := len(v.s.GetModels()) + len(v.s.GetDerived())
	// One more than fits: a plan slightly off gets the violation that says how.
	partitions := maxPartitionsPerHost * (hosts + 1)
	remarks := maxRemarks * (models + min(len(v.p.GetPartitions()), partitions) + 1)
	v.atMost("partitions", len(v.p.GetPartitions()), partitions)
	v.atMost("recipes", len(v.p.GetRecipes()), len(v.s.GetDerived())+1)
	v.atMost("dispatch entries", len(v.p.GetDispatch()), 2*models+1)
	v.atMost("predictions", len(v.p.GetPredictions()), remarks)
	v.atMost("reasons", len(v.p.GetReasons()), remarks)
	v.atMost("unplaced models", len(v.p.GetUnplaced()), 2*models+1)
	v.atMost("app routes", len(v.p.GetAppRoutes()), 2*len(v.s.GetApps())+1)
	v.atMost("sub-clusters", len(v.p.GetSubClusters()), partitions)
	v.atMost("kinds of GPU to rent", len(v.p.GetWantedGpus()), len(v.s.GetOffers())+hosts+1)
	v.atMost("bytes of policy_state", len(v.p.GetPolicyState()), policy.MaxStateBytes)
	if len(v.found) > 0 {
		return
	}
	instances, placed, members := 0, 0, 0
	for _, part := range v.p.GetPartitions() {
		instances += len(part.GetInstances())
		v.atMost("GPUs of one partition", len(part.GetGpus()), hosts+1)
	}
	v.atMost("instances", instances, (models+2)*(len(v.p.GetPartitions())+1))
	for _, c := range v.p.GetSubClusters() {
		placed += len(c.GetPartitions())
		members += len(c.GetModels())
	}
	v.atMost("partitions in sub-clusters", placed, 2*len(v.p.GetPartitions()))
	v.atMost("models in sub-clusters", members, 2*models)
	for _, d := range v.p.GetDispatch() {
		v.atMost("parameters of one discipline", len(d.GetParameters()), maxParameters)
	}
	for _, u := range v.p.GetUnplaced() {
		v.atMost("refusals of one model", len(u.GetRefusals()), maxParameters)
	}
	for _, r := range v.p.GetRecipes() {
		v.atMost("members of one recipe", len(r.GetMembers()), models)
	}
	for _, r := range v.p.GetAppRoutes() {
		v.atMost("variants of one app", len(r.GetVariants()), models)
	}
	if len(v.found) == 0 {
		v.texts(v.p.ProtoReflect())
	}
}

// texts finds names and sentences that are too long or cannot be shown, in whatever a plan has. Names of the snapshot are
// the operator's.
func (v *validator) texts(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		text := func(limit int, x protoreflect.Value) {
			v.atMost("bytes of one name or sentence", len(x.String()), limit)
			if strings.ContainsFunc(x.String(), unprintable) && v.x.Model(x.String()) == nil && v.x.Derived(x.String()) == nil {
				v.add(CodeName, string(f.FullName()), "%.80q has characters that cannot be shown", x.String())
			}
		}
		limit := maxName
		if f.Name() == "text" {
			limit = maxText
		}
		switch {
		case f.IsMap() && f.MapValue().Kind() == protoreflect.StringKind:
			value.Map().Range(func(k protoreflect.MapKey, x protoreflect.Value) bool {
				text(maxName, k.Value())
				text(maxText, x)
				return true
			})
		case f.IsMap():
		case f.IsList() && (f.Kind() == protoreflect.MessageKind || f.Kind() == protoreflect.StringKind):
			for i := range value.List().Len() {
				if f.Kind() == protoreflect.MessageKind {
					v.texts(value.List().Get(i).Message())
				} else {
					text(limit, value.List().Get(i))
				}
			}
		case f.IsList():
		case f.Kind() == protoreflect.MessageKind:
			v.texts(value.Message())
		case f.Kind() == protoreflect.StringKind:
			text(limit, value)
		}
		return true
	})
}

// unprintable are characters that move a terminal's cursor, or turn the direction of a text.
func unprintable(r rune) bool {
	return unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r)
}

// atMost notes a list that is too long, once for each kind of list.
func (v *validator) atMost(what string, count, limit int) {
	if count <= limit {
		return
	}
	for _, known := range v.found {
		if known.Code == CodeExcess && known.Subject == what {
			return
		}
	}
	v.add(CodeExcess, what, "there are %d; with this snapshot %d are enough for any plan", count, limit)
}
