// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/conch-serving/conch/internal/zoo"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch/queue/adaptive"
	"github.com/conch-serving/conch/sidecar/sim"
)

// Options of one run of a scenario.
type Options struct {
	// Dir is what the trace's file is relative to.
	Dir string
	// Seed instead of the scenario's; 0 means that one.
	Seed uint64
	// Rate is the total in requests per second instead of the scenario's; its parts stay in proportion. 0 means that one.
	Rate float64
	// GPUs instead of those there are: the first ones, or copies of the last one besides. The plan, the scenario's or the snapshot's, is left
	// out then: without a policy every model is on every GPU. 0 means those there are.
	GPUs int
	// Policy is asked for plans: see Policy.Open. Nil with a scenario that names one is an error.
	Policy sim.Policy
	// Adaptive is sim.World's.
	Adaptive *adaptive.Params
	// Progress is called now and then with how far a run is, as a fraction of its arrivals' time; it may be nil.
	Progress func(done float64)
}

// World makes the world of one run. Close it when the run is over.
func (s *Scenario) World(o Options) (*World, error) {
	w, err := s.world(o)
	if err != nil {
		if s.Name == "" {
			return nil, fmt.Errorf("%w: %w", ErrScenario, err)
		}
		return nil, fmt.Errorf("%w %s: %w", ErrScenario, s.Name, err)
	}
	return w, nil
}

// Run simulates the scenario once.
func (s *Scenario) Run(ctx context.Context, o Options) (*sim.Result, error) {
	w, err := s.World(o)
	if err != nil {
		return nil, err
	}
	if s.Dispatch.Discipline == segmented {
		r, err := s.runSegment(ctx, w)
		return r, errors.Join(err, w.Close())
	}
	if o.Progress != nil {
		w.Progress = func(now time.Duration) { o.Progress(now.Seconds() / w.Duration.Seconds()) }
	}
	r, err := sim.Run(ctx, w.World)
	return r, errors.Join(err, w.Close())
}

// Goodput searches for the highest total rate that the scenario holds, its models' parts in proportion. Search.Run is filled in; without
// seeds the scenario's own is the only one.
func (s *Scenario) Goodput(ctx context.Context, o Options, search sim.Search) (*sim.Found, error) {
	if len(search.Seeds) == 0 {
		search.Seeds = []uint64{max(1, s.Seed)}
	}
	search.Run = func(ctx context.Context, rate float64, seed uint64) (*sim.Result, error) {
		at := o
		at.Rate, at.Seed = rate, seed
		return s.Run(ctx, at)
	}
	return sim.Goodput(ctx, search)
}

// World is a sim.World and the files that it reads.
type World struct {
	sim.World
	close func() error
}

// Close closes the trace.
func (w *World) Close() error {
	if w.close == nil {
		return nil
	}
	return w.close()
}

func (s *Scenario) world(o Options) (*World, error) {
	snapshot, err := s.snapshot()
	if err != nil {
		return nil, err
	}
	if o.GPUs != 0 {
		if err := resize(snapshot, o.GPUs); err != nil {
			return nil, err
		}
		other := *s
		other.Plan = nil
		s = &other
	}
	loads, err := s.loads(snapshot)
	if err != nil {
		return nil, err
	}
	if o.Rate > 0 {
		if s.Trace != nil {
			return nil, errors.New("a rate is asked for, and a trace has its own")
		}
		if err := scale(loads, o.Rate); err != nil {
			return nil, err
		}
	}
	models := make(map[string]*policy.Model, len(snapshot.GetModels()))
	for i, m := range snapshot.GetModels() {
		models[m.GetName()], m.Rate = m, loads[i].rate
	}
	for i, p := range snapshot.GetPipelines() { // those of a given snapshot
		p.Rate = loads[len(models)+i].rate
		p.Load(models)
	}
	if err := s.addPipelines(snapshot, loads[len(models)+len(snapshot.GetPipelines()):]); err != nil {
		return nil, err
	}
	w := &World{World: sim.World{
		Snapshot: snapshot, Adaptive: o.Adaptive, Duration: s.Duration.std(), Warmup: s.Warmup.std(), Seed: s.Seed, Jitter: s.Jitter, Bins: s.Bins,
		Delays: sim.Delays{
			Request: s.Delays.Request.std(), Reply: s.Delays.Reply.std(),
			Control: s.Delays.Control.std(), DataPerRow: s.Delays.DataPerRow.std(), Response: s.Delays.Response.std(), Jitter: s.Delays.Jitter.std(),
		},
	}}
	w.StepDeadlines, _ = stepDeadlines(s.StepDeadlines)
	if s.LearnDelays {
		w.Knowledge = sim.LearnDelays
	}
	if o.Seed != 0 {
		w.Seed = o.Seed
	}
	w.Seed = max(1, w.Seed)
	snapshot.Seed = w.Seed
	if s.ExpectInterference == "none" {
		w.Expect = sim.ExpectNone
	}
	for _, f := range s.Failures {
		w.Failures = append(w.Failures, sim.Failure{At: f.At.std(), For: f.For.std(), GPU: f.GPU, Partition: f.Partition})
	}
	if b := s.Breakdowns; b != nil {
		w.Breakdowns = sim.Breakdowns{Between: b.Between.std(), Repair: b.Repair.std()}
	}
	if t := s.Timeline; t != nil {
		w.Timeline = sim.Timeline{From: t.From.std(), To: t.To.std(), Max: t.Max}
	}
	if err := s.place(&w.World, o.Policy); err != nil {
		return nil, err
	}
	if err := s.possible(&w.World); err != nil {
		return nil, err
	}
	if s.Trace != nil {
		return w, s.trace(w, o.Dir)
	}
	// A snapshot may be of a moment without requests: its caller brings arrivals of its own.
	if s.Snapshot == nil && !slices.ContainsFunc(loads, func(l load) bool { return l.rate > 0 }) {
		return nil, errors.New("nothing arrives: give rate, or the rate of a model, or a trace")
	}
	w.Streams, err = streams(loads, w.Duration, w.Seed)
	return w, err
}

// possible refuses what the plan of the file cannot be: models that do not fit into a GPU's memory, and failures of partitions that are not in
// it. What policies plan is judged when they do.
func (s *Scenario) possible(w *sim.World) error {
	if w.Plan == nil || s.Snapshot != nil {
		return nil
	}
	memory, needs := map[string]uint64{}, map[string]uint64{}
	for _, n := range w.Snapshot.GetNodes() {
		for _, g := range n.GetGpus() {
			memory[g.GetId()] = g.GetMemoryBytes()
		}
	}
	models := map[string]*policy.Model{}
	for _, m := range w.Snapshot.GetModels() {
		models[m.GetName()] = m
	}
	for _, p := range w.Plan.GetPartitions() {
		for _, i := range p.GetInstances() {
			needs[p.GPU()] += models[i.GetModel()].GetMemoryBytes()
		}
		if has := memory[p.GPU()]; has > 0 && needs[p.GPU()] > has {
			return fmt.Errorf("the models on %s need %d bytes, and it has memoryBytes %d: name where models are (plan), or a policy", p.GPU(), needs[p.GPU()], has)
		}
	}
	for i, f := range s.Failures {
		if f.Partition != "" && !slices.ContainsFunc(w.Plan.GetPartitions(), func(p *policy.Partition) bool { return p.GetId() == f.Partition }) {
			return fmt.Errorf("failures[%d]: there is no partition %q; the first is called %s", i, f.Partition, w.Plan.GetPartitions()[0].GetId())
		}
	}
	return nil
}

// snapshot is the scenario's world as policies see it.
func (s *Scenario) snapshot() (*policy.Snapshot, error) {
	if s.Snapshot != nil {
		return s.given()
	}
	snapshot := &policy.Snapshot{
		Revision: 1, Objective: policy.Objective_OBJECTIVE_MAX_GOODPUT, ChangeCost: s.ChangeCost.proto(),
	}
	types := map[string]bool{}
	nodes := map[string]*policy.Node{}
	n := 0
	for _, g := range s.GPUs {
		name := g.Node
		if name == "" {
			name = "sim"
		}
		node := nodes[name]
		if node == nil {
			node = &policy.Node{Name: name}
			nodes[name] = node
			snapshot.Nodes = append(snapshot.Nodes, node)
		}
		types[g.Type] = true
		for range max(1, g.Count) {
			node.Gpus = append(node.Gpus, &policy.GPU{
				Id: fmt.Sprintf("gpu%d", n), Type: g.Type, MemoryBytes: g.MemoryBytes, CostPerHour: g.CostPerHour, Emulated: true, Index: uint32(n),
			})
			n++
		}
	}
	for _, offer := range s.Offers {
		types[offer.Type] = true
		snapshot.Objective = policy.Objective_OBJECTIVE_MIN_COST
		snapshot.Offers = append(snapshot.Offers, &policy.GPUOffer{
			Type: offer.Type, MemoryBytes: offer.MemoryBytes, CostPerHour: offer.CostPerHour, MaxCount: offer.MaxCount, StartSeconds: offer.Start.std().Seconds(),
		})
	}
	for _, i := range s.Interference {
		snapshot.Interference = append(snapshot.Interference, &policy.Interference{
			GpuType: i.GPUType, L2Self: i.L2Self, L2Other: i.L2Other, BandwidthSelf: i.BandwidthSelf, BandwidthOther: i.BandwidthOther, Constant: i.Constant,
		})
	}
	known := map[string]bool{}
	for _, m := range s.Models {
		for _, name := range m.names() {
			if known[name] {
				return nil, fmt.Errorf("two models are called %s", name)
			}
			known[name] = true
			if err := m.add(snapshot, name, types); err != nil {
				return nil, fmt.Errorf("model %s: %w", name, err)
			}
		}
	}
	return snapshot, nil
}

func (c ChangeCost) proto() *policy.ChangeCost {
	return &policy.ChangeCost{PartitionStartSeconds: c.Start.std().Seconds(), DefaultLoadSeconds: c.Load.std().Seconds()}
}

func (m Model) names() []string {
	if m.Count <= 1 {
		return []string{m.Name}
	}
	names := make([]string, m.Count)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d", m.Name, i)
	}
	return names
}

func late(text string) policy.LatePolicy {
	if text == "drop" {
		return policy.LatePolicy_LATE_POLICY_DROP
	}
	return policy.LatePolicy_LATE_POLICY_SERVE
}

// defaultMaxBatch is the largest batch of a model that does not say.
const defaultMaxBatch = 64

// add puts a model and its profiles into the snapshot.
func (m Model) add(snapshot *policy.Snapshot, name string, types map[string]bool) error {
	model := &policy.Model{
		Name: name, SloUs: m.SLO.std().Microseconds(), Late: late(m.Late), MaxBatchSize: m.MaxBatch, Batchable: true, Burstiness: 1,
		MemoryBytes: m.MemoryBytes, LoadSeconds: m.Load.std().Seconds(),
	}
	if model.MaxBatchSize == 0 {
		model.MaxBatchSize = defaultMaxBatch
	}
	if m.Arrivals != nil && m.Arrivals.Shape > 0 {
		model.Burstiness = 1 / m.Arrivals.Shape
	}
	profiles := m.Profiles
	if m.Profile != nil {
		profiles = []Profile{*m.Profile}
	}
	for _, p := range profiles {
		if p.GPUType == "" {
			if len(types) != 1 {
				return fmt.Errorf("a profile without gpuType, where GPUs are of %d types", len(types))
			}
			for t := range types {
				p.GPUType = t
			}
		}
		points, slo, err := p.points(model.MaxBatchSize)
		if err != nil {
			return fmt.Errorf("profile for %s: %w", p.GPUType, err)
		}
		if model.SloUs == 0 {
			model.SloUs = slo.Microseconds()
		}
		snapshot.Profiles = append(snapshot.Profiles, &policy.Profile{
			Model: name, GpuType: p.GPUType, Points: points, Usable: true, Source: policy.ProfileSource_PROFILE_SOURCE_DECLARED,
		})
	}
	snapshot.Models = append(snapshot.Models, model)
	return nil
}

// points of a profile up to a batch, and the published SLO where there is one.
func (p Profile) points(maxBatch uint32) (points []*policy.ProfilePoint, slo time.Duration, err error) {
	kinds := 0
	for _, given := range []bool{p.Zoo != "", p.Alpha > 0 || p.Beta > 0, len(p.Points) > 0} {
		if given {
			kinds++
		}
	}
	if kinds != 1 || p.Knee > 100 {
		return nil, 0, errors.New("give a model of the zoo, alpha and beta, or points, and a knee up to 100")
	}
	point := func(batch, share uint32, latency, upper float64) *policy.ProfilePoint {
		part := float64(share) / 100
		estimate := func(v float64) *policy.Estimate { return &policy.Estimate{Value: v} }
		return &policy.ProfilePoint{
			Batch: batch, ThreadPercentage: share, LatencyUs: estimate(latency), LatencyUpperUs: upper,
			Creq: estimate(min(part, p.Creq)), Mreq: estimate(p.Mreq), L2Utilization: estimate(part * p.L2), BandwidthUtilization: estimate(part * p.Bandwidth),
		}
	}
	micros := func(d time.Duration) float64 { return float64(d) / 1e3 }
	if len(p.Points) > 0 {
		for i, q := range p.Points {
			share := q.Share
			if share == 0 {
				share = 100
			}
			if q.Batch < 1 || share > 100 || q.Latency <= 0 {
				return nil, 0, fmt.Errorf("points[%d]: batch %d at %d%% takes %v; all are above 0, the share up to 100", i, q.Batch, share, q.Latency.std())
			}
			points = append(points, point(q.Batch, share, micros(q.Latency.std()), micros(q.Upper.std())))
		}
		sortPoints(points)
		return points, 0, nil
	}
	alpha, beta := p.Alpha.std(), p.Beta.std()
	if p.Zoo != "" {
		published, err := zoo.Lookup(p.GPUType, p.Zoo)
		if err != nil {
			return nil, 0, err
		}
		alpha, beta, slo = published.Alpha, published.Beta, published.SLO
	}
	knee := p.Knee
	if knee == 0 {
		knee = 100
	}
	// l(b, p) = (beta + alpha b) knee/min(p, knee): the contract's own interpolation is linear in b and in 1/p, so four points say it all.
	for _, share := range []uint32{max(1, knee/2), knee, 100} {
		if len(points) > 0 && points[len(points)-1].GetThreadPercentage() == share {
			continue
		}
		for _, b := range []uint32{1, maxBatch + 1} {
			us := micros(beta+time.Duration(b)*alpha) * float64(knee) / float64(min(share, knee))
			points = append(points, point(b, share, us, us))
		}
	}
	return points, slo, nil
}

// given is the snapshot of the file with what Models change.
func (s *Scenario) given() (*policy.Snapshot, error) {
	text, err := json.Marshal(s.Snapshot)
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	snapshot := &policy.Snapshot{}
	if err := protojson.Unmarshal(text, snapshot); err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	byName := map[string]*policy.Model{}
	for _, m := range snapshot.GetModels() {
		byName[m.GetName()] = m
	}
	for _, change := range s.Models {
		m := byName[change.Name]
		if m == nil {
			return nil, fmt.Errorf("model %s is not in the snapshot", change.Name)
		}
		if change.SLO > 0 {
			m.SloUs = change.SLO.std().Microseconds()
		}
		if change.Late != "" {
			m.Late = late(change.Late)
		}
		if change.Load > 0 {
			m.LoadSeconds = change.Load.std().Seconds()
		}
	}
	arrivalsOfTheirOwn(snapshot)
	if s.ChangeCost != (ChangeCost{}) {
		snapshot.ChangeCost = s.ChangeCost.proto()
	}
	return snapshot, nil
}

// arrivalsOfTheirOwn takes what pipelines ask of models out of the models' rates. Of an ensemble whose steps conch executes only the pipeline is simulated:
// it is no model any more, and in no partition.
func arrivalsOfTheirOwn(s *policy.Snapshot) {
	s.Unload()
	s.Models = slices.DeleteFunc(s.GetModels(), func(m *policy.Model) bool { return s.Pipeline(m.GetName()) != nil })
	for _, part := range s.GetCurrent().GetPartitions() {
		part.Instances = slices.DeleteFunc(part.GetInstances(), func(in *policy.Instance) bool { return s.Pipeline(in.GetModel()) != nil })
	}
	if p := s.GetCurrent(); p != nil {
		p.Dispatch = slices.DeleteFunc(p.GetDispatch(), func(d *policy.Dispatch) bool { return s.Pipeline(d.GetModel()) != nil })
	}
}
