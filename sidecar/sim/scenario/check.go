// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"errors"
	"fmt"
	"math"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/parser"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/sim/discipline"
)

// fault is what is wrong with one value of the file, by the value's path.
type fault struct {
	path string // as in models[1].slo
	err  error
}

func (f *fault) Error() string { return f.err.Error() }
func (f *fault) Unwrap() error { return f.err }

func at(path, format string, args ...any) error {
	return &fault{path, fmt.Errorf(format, args...)}
}

// under puts a path before that of a fault below it.
func under(path string, err error) error {
	var f *fault
	if !errors.As(err, &f) {
		return err
	}
	if f.path == "" {
		return &fault{path, f.err}
	}
	return &fault{path + "." + f.path, f.err}
}

// located puts line and column before a fault, as the decoder does before its own: those of the value, or of what it is missing in.
func located(data []byte, err error) error {
	var f *fault
	if !errors.As(err, &f) {
		return err
	}
	file, broken := parser.ParseBytes(data, 0)
	if broken != nil {
		return err
	}
	for path := f.path; path != ""; path = parent(path) {
		p, broken := yaml.PathString("$." + path)
		if broken != nil {
			continue
		}
		if node, broken := p.FilterFile(file); broken == nil && node != nil && node.GetToken() != nil {
			at := node.GetToken().Position
			return fmt.Errorf("[%d:%d] %w", at.Line, at.Column, err)
		}
	}
	return err
}

func parent(path string) string {
	for i := len(path) - 1; i > 0; i-- {
		if path[i] == '.' || path[i] == '[' {
			return path[:i]
		}
	}
	return ""
}

// hasValue reports whether the file has a value at a path: decoded, a number that the file leaves out and a number that it sets to 0 are the same.
func hasValue(data []byte, path string) bool {
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return false
	}
	p, err := yaml.PathString("$." + path)
	if err != nil {
		return false
	}
	node, err := p.FilterFile(file)
	return err == nil && node != nil
}

// counts refuses numbers of GPUs and models that are set to 0.
func (s *Scenario) counts(data []byte) error {
	for i, g := range s.GPUs {
		if path := fmt.Sprintf("gpus[%d].count", i); g.Count == 0 && hasValue(data, path) {
			return at(path, "%s is 0; leave the entry out, or give a number from 1 to %d", path, maxCount)
		}
	}
	for i, m := range s.Models {
		if path := fmt.Sprintf("models[%d].count", i); m.Count == 0 && hasValue(data, path) {
			return at(path, "%s is 0; leave the entry out, or give a number from 1 to %d", path, maxCount)
		}
	}
	return nil
}

// Check finds contradictions with which the scenario cannot run. Parse calls it; a caller that changes a scenario calls it again.
func (s *Scenario) Check() error {
	if err := s.check(); err != nil {
		return fmt.Errorf("%w: %w", ErrScenario, err)
	}
	return nil
}

func (s *Scenario) check() error {
	switch {
	case s.APIVersion != APIVersion:
		return at("apiVersion", "apiVersion is %q, must be %q", s.APIVersion, APIVersion)
	case s.Snapshot != nil && (len(s.GPUs) > 0 || len(s.Interference) > 0 || len(s.Offers) > 0):
		return at("snapshot", "gpus, offers and interference come from the snapshot: leave them out")
	case s.Snapshot == nil && len(s.GPUs) == 0:
		return at("gpus", "gpus: there are none, and no snapshot")
	case s.Snapshot == nil && len(s.Models) == 0:
		return at("models", "models: there are none, and no snapshot")
	case s.Policy != nil && s.Plan != nil:
		return at("plan", "policy and plan: one of them says where models are, not both")
	case s.Zipf != nil && s.Rate == 0:
		return at("zipf", "zipf divides a rate: give one")
	case s.Zipf != nil && !(*s.Zipf >= 0 && *s.Zipf <= 100):
		return at("zipf", "zipf %g is no exponent from 0 to 100", *s.Zipf)
	case !(s.Rate >= 0) || s.Rate > maxRate:
		return at("rate", "rate %g is no number of requests per second up to %g", s.Rate, maxRate)
	case s.Duration == 0 && s.Trace == nil:
		return at("duration", "duration: give one, or a trace")
	case s.Duration > 0 && s.Warmup >= s.Duration:
		return at("warmup", "warmup %v is not below duration %v, so that no request would count", s.Warmup.std(), s.Duration.std())
	case s.ExpectInterference != "" && s.ExpectInterference != "worst" && s.ExpectInterference != "none":
		return at("expectInterference", "expectInterference is %q, must be worst or none", s.ExpectInterference)
	case !(s.Jitter >= 0 && s.Jitter <= 1):
		return at("jitter", "jitter %g is no standard deviation from 0 to 1", s.Jitter)
	case s.Bins < 0 || s.Bins > maxBins:
		return at("bins", "bins %d is not from 0 to %d", s.Bins, maxBins)
	}
	for _, part := range []func() error{s.checkPlan, s.checkGPUs, s.checkModels, s.checkPipelines, s.checkTrouble, s.checkTimeline, s.checkSegment} {
		if err := part(); err != nil {
			return err
		}
	}
	if s.Dispatch.Discipline == segmented {
		return nil // checkSegment has seen it
	}
	return under("dispatch", s.Dispatch.check())
}

const (
	maxCount    = 100_000
	maxRate     = 1e12
	maxRows     = 1 << 16
	maxBins     = 1_000_000
	maxTimeline = 1_000_000
)

func (s *Scenario) checkPlan() error {
	p := s.Plan
	if p == nil {
		return nil
	}
	gpus := 0
	for _, g := range s.GPUs {
		gpus += max(1, g.Count)
	}
	switch {
	case p.Subclusters < 0 || (len(p.Partitions) > 0) == (p.Subclusters > 0):
		return at("plan", "plan: give partitions, or a number of subclusters")
	case s.Snapshot == nil && p.Subclusters > gpus:
		return at("plan.subclusters", "plan: %d subclusters, and %d GPUs: each needs one at least", p.Subclusters, gpus)
	}
	shares := map[string]uint32{}
	for i, part := range p.Partitions {
		path := fmt.Sprintf("plan.partitions[%d]", i)
		share := part.Share
		if share == 0 {
			share = 100
		}
		if shares[part.GPU] += share; shares[part.GPU] > 100 {
			return at(path, "plan: partitions[%d]: the shares of GPU %s sum up to %d%%, above 100", i, part.GPU, shares[part.GPU])
		}
		if len(part.Models) == 0 {
			return at(path, "plan: partitions[%d] has no models; leave it out", i)
		}
	}
	return nil
}

func (s *Scenario) checkGPUs() error {
	types := map[string]bool{}
	for i, g := range s.GPUs {
		path := fmt.Sprintf("gpus[%d]", i)
		if g.Type == "" || g.Count < 0 || g.Count > maxCount {
			return at(path, "gpus[%d]: type %q, count %d; a type is needed, and a count from 1 to %d", i, g.Type, g.Count, maxCount)
		}
		types[g.Type] = true
		sum := uint32(0)
		for _, share := range g.Shares {
			sum += min(share, 101)
			if share < 1 || sum > 100 {
				return at(path+".shares", "gpus[%d]: shares %v: each is from 1 to 100, and all together at most 100", i, g.Shares)
			}
		}
		if !(g.CostPerHour >= 0 && g.CostPerHour <= maxRate) {
			return at(path+".costPerHour", "gpus[%d]: costPerHour %g is no price", i, g.CostPerHour)
		}
	}
	for _, o := range s.Offers {
		types[o.Type] = true
	}
	for i, fit := range s.Interference {
		path := fmt.Sprintf("interference[%d]", i)
		if !types[fit.GPUType] {
			return at(path+".gpuType", "interference[%d]: there is no GPU of type %q", i, fit.GPUType)
		}
		for _, v := range []float64{fit.L2Self, fit.L2Other, fit.BandwidthSelf, fit.BandwidthOther, fit.Constant} {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				return at(path, "interference[%d]: %g is no coefficient", i, v)
			}
		}
	}
	return nil
}

func (s *Scenario) checkModels() error {
	first, total := map[string]int{}, 0
	for i, m := range s.Models {
		path := fmt.Sprintf("models[%d]", i)
		if err := under(path, m.check(s.Snapshot != nil)); err != nil {
			return wrapped(err, fmt.Sprintf("models[%d] %s", i, m.Name))
		}
		if total += max(1, m.Count); total > maxCount {
			return at(path, "models[%d]: more than %d models in all", i, maxCount)
		}
		for _, name := range m.names() {
			if before, known := first[name]; known {
				return at(path+".name", "models[%d]: two models are called %s: models[%d] is one too", i, name, before)
			}
			first[name] = i
		}
	}
	return nil
}

// wrapped puts words before a fault and keeps its path.
func wrapped(err error, words string) error {
	var f *fault
	if errors.As(err, &f) {
		return &fault{f.path, fmt.Errorf("%s: %w", words, f.err)}
	}
	return fmt.Errorf("%s: %w", words, err)
}

func (m Model) check(known bool) error {
	switch {
	case m.Name == "":
		return at("", "it needs a name")
	case m.Count < 0 || m.Count > maxCount:
		return at("count", "count %d is not from 1 to %d", m.Count, maxCount)
	case !(m.Rate >= 0 && m.Rate <= maxRate) || !(m.Weight >= 0 && m.Weight <= maxRate):
		return at("", "rate %g and weight %g must be numbers from 0 to %g", m.Rate, m.Weight, maxRate)
	case m.Late != "" && m.Late != "serve" && m.Late != "drop":
		return at("late", "late is %q, must be serve or drop", m.Late)
	case m.Operators < 0 || m.Operators > maxRows:
		return at("operators", "operators %d is not from 1 to %d", m.Operators, maxRows)
	case m.MaxBatch > maxRows:
		return at("maxBatch", "maxBatch %d is above %d", m.MaxBatch, maxRows)
	case known && (m.Count > 1 || m.Profile != nil || len(m.Profiles) > 0 || m.MaxBatch > 0 || m.MemoryBytes > 0):
		return at("", "beside a snapshot a model changes slo, late, rate, weight, arrivals, dispatch and load only")
	case !known && (m.Profile == nil) == (len(m.Profiles) == 0):
		return at("", "give one profile, or profiles for several GPU types")
	}
	if m.Profile != nil {
		if err := under("profile", m.Profile.check()); err != nil {
			return err
		}
	}
	for i, p := range m.Profiles {
		if err := under(fmt.Sprintf("profiles[%d]", i), p.check()); err != nil {
			return err
		}
	}
	if a := m.Arrivals; a != nil {
		largest := m.MaxBatch
		if largest == 0 {
			largest = defaultMaxBatch
		}
		if !known && a.Rows > int32(largest) { //nolint:gosec // up to maxRows
			return at("arrivals.rows", "arrivals: requests of %d rows, which is not from 1 to maxBatch (%d)", a.Rows, largest)
		}
		if err := under("arrivals", a.check()); err != nil {
			return err
		}
	}
	if m.Dispatch != nil {
		return under("dispatch", m.Dispatch.check())
	}
	return nil
}

func (a *Arrivals) check() error {
	switch {
	case a.Rows < 0:
		return at("rows", "arrivals: requests of %d rows", a.Rows)
	case !(a.Shape >= 0) || math.IsInf(a.Shape, 0):
		return at("shape", "arrivals: Gamma shape %g: it must be above 0; 1 is Poisson, .1 bursty", a.Shape)
	case len(a.Steps) > 0 && a.Diurnal != nil:
		return at("", "arrivals: give steps or diurnal, not both")
	}
	for i, step := range a.Steps {
		if !(step.Factor >= 0 && step.Factor <= maxRate) {
			return at(fmt.Sprintf("steps[%d].factor", i), "arrivals: step %d multiplies the rate by %g, which is no number from 0", i+1, step.Factor)
		}
	}
	return nil
}

func (p Profile) check() error {
	for name, v := range map[string]float64{"creq": p.Creq, "mreq": p.Mreq, "l2": p.L2, "bandwidth": p.Bandwidth} {
		if !(v >= 0 && v <= 1) {
			return at(name, "%s %g is no fraction of a GPU, from 0 to 1", name, v)
		}
	}
	return nil
}

// check asks the queue.
func (d Dispatch) check() error {
	if d.Discipline != "" {
		if _, err := discipline.New(d.Discipline, d.Parameters); err != nil {
			return &fault{"", err}
		}
	}
	if d.DropPolicy != "" {
		if _, err := queue.NewDropPolicy(d.DropPolicy); err != nil {
			return &fault{"", err}
		}
	}
	return nil
}

func (s *Scenario) checkTrouble() error {
	for i, f := range s.Failures {
		path := fmt.Sprintf("failures[%d]", i)
		if (f.GPU == "") == (f.Partition == "") {
			return at(path, "failures[%d] needs a gpu or a partition", i)
		}
		if s.Duration > 0 && f.At >= s.Duration {
			return at(path+".at", "failures[%d] is at %v, and duration is %v", i, f.At.std(), s.Duration.std())
		}
	}
	if b := s.Breakdowns; b != nil && (b.Between <= 0 || b.Repair <= 0) {
		return at("breakdowns", "breakdowns need a time between them and a time of repair above 0")
	}
	return nil
}

func (s *Scenario) checkTimeline() error {
	t := s.Timeline
	switch {
	case t == nil:
		return nil
	case t.Max < 0 || t.Max > maxTimeline:
		return at("timeline.max", "timeline: max %d is no number of batches from 0 to %d", t.Max, maxTimeline)
	case t.To > 0 && t.To <= t.From, s.Duration > 0 && t.From >= s.Duration:
		return at("timeline", "timeline: from %v to %v has nothing of %v in it", t.From.std(), t.To.std(), s.Duration.std())
	}
	return nil
}
