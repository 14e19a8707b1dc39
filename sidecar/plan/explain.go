// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/conch-serving/conch/plugins/policy"
)

// ErrUnknownModel is returned where the snapshot does not have the model.
var ErrUnknownModel = errors.New("unknown model")

// Explanation says where a model is and why. Latencies and times are
// microseconds, rates are requests per second.
type Explanation struct {
	Model string `json:"model"`
	// Policy and PolicyVersion made the plan, Revision is its snapshot's.
	Policy        string `json:"policy"`
	PolicyVersion string `json:"policy_version"`
	Revision      uint64 `json:"revision"`

	// SLOUS is 0 where the model has no SLO.
	SLOUS             int64   `json:"slo_us"`
	Late              string  `json:"late"`
	Rate              float64 `json:"rate"`
	Burstiness        float64 `json:"burstiness"`
	PassThroughReason string  `json:"pass_through_reason,omitempty"`

	Placements []Placement `json:"placements"`
	// Reasons are the policy's own sentences.
	Reasons []string `json:"reasons,omitempty"`
	// Refusals says why the model has no place or too few:
	// "0/8 partitions: 5 memory, 3 latency".
	Refusals string `json:"refusals,omitempty"`
	// Discipline, with drop policy and parameters; empty where the plan leaves it
	// to the default.
	Discipline string `json:"discipline,omitempty"`
	// Rules are the operator's constraints that hold for the model.
	Rules []string `json:"rules,omitempty"`
	// Expected is what the policy predicts, Measured what happened since the last
	// snapshot; nil where nothing is known.
	Expected *Performance `json:"expected,omitempty"`
	Measured *Performance `json:"measured,omitempty"`
	// Steps of an ensemble that Conch executes; nil for other models. Whole: it is an ensemble that is none of these.
	Steps *Steps `json:"steps,omitempty"`
	Whole bool   `json:"whole,omitempty"`
}

// Placement is one partition that serves the model.
type Placement struct {
	Partition string `json:"partition"`
	Node      string `json:"node,omitempty"`
	GPU       string `json:"gpu"`
	GPUType   string `json:"gpu_type"`
	Share     uint32 `json:"thread_percentage"`
	Rank      uint32 `json:"rank"`
	// As is how it is served there: the model itself, or the derived model that it
	// is a member of.
	As       string `json:"as"`
	MaxBatch uint32 `json:"max_batch"`
	// Enforced is false where the share is recorded only.
	Enforced bool `json:"share_enforced"`
	// Why are the policy's sentences about this partition.
	Why []string `json:"why,omitempty"`
	// Profile is l(b, p) as used here; nil where there is none.
	Profile *ProfileUsed `json:"profile,omitempty"`
}

// ProfileUsed is what a profile says about one placement.
type ProfileUsed struct {
	// Source is estimated, calibrated, observed or declared.
	Source string `json:"source"`
	// Usable is false while the model is still being learnt; Interfered says that
	// it is slower than its profile.
	Usable     bool `json:"usable"`
	Interfered bool `json:"interfered"`
	// OneUS is l(1) and MaxUS l(max batch), each with the half width of its 95%
	// interval and the upper quantile that deadlines are planned with.
	OneUS      float64 `json:"one_us"`
	OneBoundUS float64 `json:"one_bound_us"`
	OneUpperUS float64 `json:"one_upper_us"`
	MaxUS      float64 `json:"max_us"`
	MaxBoundUS float64 `json:"max_bound_us"`
	MaxUpperUS float64 `json:"max_upper_us"`
	// LargestInSLO is the largest batch that alone fits the SLO.
	LargestInSLO uint32 `json:"largest_in_slo"`
}

// Performance is what a model does, expected or measured.
type Performance struct {
	Goodput      float64 `json:"goodput"`
	LatencyP99US float64 `json:"latency_p99_us"`
	MeanBatch    float64 `json:"mean_batch"`
	BadRate      float64 `json:"bad_rate"`
}

// Explain says where the model is by plan p, the answer to snapshot s, and why.
// A nil plan leaves it without a place. It fails with [ErrUnknownModel].
func Explain(s *policy.Snapshot, p *policy.Plan, model string) (*Explanation, error) {
	x := policy.NewIndex(s)
	m := x.Model(model)
	if m == nil {
		return nil, fmt.Errorf("%w: snapshot %d has no model %q", ErrUnknownModel, s.GetRevision(), model)
	}
	e := &Explanation{
		Model: model, Policy: p.GetPolicy(), PolicyVersion: p.GetPolicyVersion(), Revision: s.GetRevision(),
		SLOUS: m.GetSloUs(), Late: enumText(m.GetLate().String(), "LATE_POLICY_"), Rate: m.GetRate(), Burstiness: m.GetBurstiness(),
		PassThroughReason: m.GetPassThroughReason(), Rules: ruleTexts(x.Rule(model)), Steps: steps(s, model),
	}
	e.Whole = e.Steps == nil && len(m.GetDependsOn()) > 0
	if e.Steps != nil {
		e.PassThroughReason = "" // its steps are batched
	}
	names := map[string]bool{model: true}
	for _, r := range p.GetRecipes() {
		if slices.Contains(r.GetMembers(), model) {
			names[r.GetName()] = true
		}
	}
	for _, part := range p.PartitionsOf(model) {
		e.Placements = append(e.Placements, placement(x, p, part, m))
	}
	for _, r := range p.GetReasons() {
		if names[r.GetModel()] && r.GetPartition() == "" {
			e.Reasons = append(e.Reasons, r.GetText())
		}
	}
	for _, u := range p.GetUnplaced() {
		if u.GetModel() == model {
			e.Refusals = u.GetText()
			if e.Refusals == "" {
				e.Refusals = policy.FormatRefusals(u.GetTried(), u.GetRefusals())
			}
		}
	}
	for _, d := range p.GetDispatch() {
		if names[d.GetModel()] {
			e.Discipline = dispatchText(d)
		}
	}
	for _, d := range p.GetPredictions() {
		if names[d.GetModel()] {
			e.Expected = &Performance{Goodput: d.GetGoodput(), LatencyP99US: d.GetLatencyP99Us(), MeanBatch: d.GetMeanBatch(), BadRate: d.GetBadRate()}
		}
	}
	for _, d := range s.GetStatistics().GetModels() {
		if d.GetModel() == model {
			e.Measured = &Performance{Goodput: d.GetGoodput(), LatencyP99US: d.GetLatencyP99Us(), MeanBatch: d.GetMeanBatch(), BadRate: d.GetBadRate()}
		}
	}
	return e, nil
}

func placement(x *policy.Index, p *policy.Plan, part *policy.Partition, m *policy.Model) Placement {
	gpu := x.GPUOf(part)
	at := Placement{
		Partition: part.GetId(), Node: part.GetNode(), GPU: part.Hosts(), GPUType: x.TypeOf(part),
		Share: part.GetThreadPercentage(), Rank: part.GetRank(), Enforced: gpu.GetSharesEnforced(),
	}
	for _, in := range part.GetInstances() {
		for _, name := range p.ModelsOf(in) {
			if name == m.GetName() {
				at.As, at.MaxBatch = in.GetModel(), in.GetMaxBatch()
			}
		}
	}
	if at.MaxBatch == 0 {
		at.MaxBatch = max(1, m.GetMaxBatchSize())
	}
	for _, r := range p.GetReasons() {
		if r.GetPartition() == part.GetId() && (r.GetModel() == "" || r.GetModel() == m.GetName()) {
			at.Why = append(at.Why, r.GetText())
		}
	}
	profile := x.Profile(m.GetName(), x.TypeOf(part))
	if profile == nil {
		return at
	}
	used := &ProfileUsed{
		Source: enumText(profile.GetSource().String(), "PROFILE_SOURCE_"), Usable: profile.GetUsable(), Interfered: profile.GetInterfered(),
		LargestInSLO: profile.MaxBatch(at.Share, at.MaxBatch, float64(m.GetSloUs())),
	}
	used.OneUS, _ = profile.Latency(1, at.Share)
	used.OneBoundUS, _ = profile.Bound(1, at.Share)
	used.OneUpperUS, _ = profile.Upper(1, at.Share)
	used.MaxUS, _ = profile.Latency(at.MaxBatch, at.Share)
	used.MaxBoundUS, _ = profile.Bound(at.MaxBatch, at.Share)
	used.MaxUpperUS, _ = profile.Upper(at.MaxBatch, at.Share)
	at.Profile = used
	return at
}

func ruleTexts(r *policy.Rule) []string {
	var texts []string
	say := func(holds bool, format string, args ...any) {
		if holds {
			texts = append(texts, fmt.Sprintf(format, args...))
		}
	}
	gpus, restricted := r.GPUs()
	say(restricted, "only on %s", strings.Join(gpus, ", "))
	say(r.MinInstances > 0, "at least %d partitions", r.MinInstances)
	say(r.MaxInstances > 0, "at most %d partitions", r.MaxInstances)
	say(r.MinShare > 0, "at least %d%% of a GPU", r.MinShare)
	say(r.MaxShare > 0, "at most %d%% of a GPU", r.MaxShare)
	say(r.Exclusive, "alone on its partitions")
	say(r.Pinned, "pinned")
	say(r.NeverMerge, "never merged")
	return texts
}

func enumText(value, prefix string) string {
	return strings.ToLower(strings.TrimPrefix(value, prefix))
}
