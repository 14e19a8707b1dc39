// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package advise

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

const (
	// trial is how long one simulated trial is at the least. It is longer where the model that is asked for least would have fewer than rareRequests, of which single
	// ones decide whether 1% are bad, but for no more than mostRequests in all.
	trial        = 20 * time.Second
	rareRequests = 300
	mostRequests = 50_000
	// fewestRequests is below which a model's traffic says nothing of 1% bad.
	fewestRequests = 200
	// short is the recording below which a note is due.
	short = 30 * time.Second
	// liveWindow is what the rates of a snapshot cover that does not say.
	liveWindow = 5 * time.Second
	// learning is for how long Conch learns in front of a server over several GPUs before a trial counts: what its batches wait for there is in no profile.
	learning = 15 * time.Second
	// jitter of executions, as a fraction of their time.
	jitter = .02
	// mostLeftOut is the share of all requests that may belong to models that cannot be judged.
	mostLeftOut = .1
)

// Traffic is a recorded trace in memory.
type Traffic struct {
	Header   workload.Header
	Models   []workload.TraceModel
	Arrivals []workload.Arrival // in order of time
	Length   time.Duration
	// Truncated: the trace ends in the middle of an entry, as when its writer was killed. What is before is here.
	Truncated bool
}

// ReadTraffic reads a trace to its end.
func ReadTraffic(r io.Reader) (*Traffic, error) {
	t, err := workload.NewReader(r)
	if err != nil {
		return nil, err
	}
	out := &Traffic{Header: t.Header}
	var a workload.Arrival
	for t.Next(&a) {
		out.Arrivals = append(out.Arrivals, a)
		out.Length = max(out.Length, a.At+1)
	}
	if err := t.Err(); err != nil {
		if !errors.Is(err, workload.ErrTruncated) || len(out.Arrivals) == 0 {
			return nil, err
		}
		out.Truncated = true
	}
	out.Models = t.Models()
	slices.SortStableFunc(out.Arrivals, func(a, b workload.Arrival) int { return int(a.At - b.At) })
	return out, nil
}

// world is what every trial has in common.
type world struct {
	in       Input
	snapshot *policy.Snapshot // without models that have no traffic or cannot be simulated
	rate     float64
	rarest   float64 // the part of all requests that is for the model, or ensemble, that is asked for least
	// hidden are the kinds whose l(b) is found from what servers counted; open are those of which only l(1) was seen.
	hidden, open []*hidden
	// phase counts the parts of the work that are behind, of phases.
	phase, phases int
}

// look finds out what can be simulated, and what is missing.
func (a *Advice) look(in Input) *world {
	s := proto.CloneOf(in.Snapshot)
	s.Unload() // what ensembles ask of their steps' models comes with their own requests
	w := &world{in: in}
	counts := map[string]float64{}
	if in.Traffic != nil {
		for _, arrival := range in.Traffic.Arrivals {
			name := in.Traffic.Models[arrival.Model].Name
			counts[name]++
		}
		if in.Traffic.Truncated {
			a.note("what arrived after the recording was cut off: it ends in the middle of an entry.")
		}
		if in.Traffic.Length < short {
			a.note("how the traffic varies beyond the %v that were recorded.", in.Traffic.Length.Round(100*time.Millisecond))
		}
	} else {
		for _, m := range s.GetModels() {
			counts[m.GetName()] = m.GetRate() * window(s).Seconds()
		}
		for _, p := range s.GetPipelines() {
			counts[p.GetName()] = p.GetRate() * window(s).Seconds()
		}
		a.note("how the traffic varies beyond the last %v: `tritonctl advise --for 5m` knows more.", window(s))
	}
	several := false
	for _, g := range policy.NewIndex(s).GPUs() {
		n := int(max(1, g.GetExecutions()))
		a.GPUs, several = a.GPUs+n, several || n > 1
	}
	j := judgement{Advice: a, world: w, snapshot: s, counts: counts, keep: map[string]bool{}, learnt: map[string]string{}}
	j.models()
	j.pipelines()
	// A model that is hardly ever called must not keep the others without an answer.
	for _, why := range j.left {
		if len(j.keep) > 0 && j.unknown <= mostLeftOut*(j.total+j.unknown) {
			a.note("what %s costs the others: it is left out here (%s)", why.model, why.text)
		} else {
			a.Missing = append(a.Missing, why.model+": "+why.text)
		}
	}
	for _, name := range sorted(counts) {
		if counts[name] > 0 && s.Pipeline(name) == nil && !slices.ContainsFunc(s.GetModels(), func(m *policy.Model) bool { return m.GetName() == name }) {
			a.Missing = append(a.Missing, name+": it is in the trace and not in the snapshot.")
		}
	}
	if len(j.keep) == 0 && len(a.Missing) == 0 {
		a.Missing = append(a.Missing, "No requests were seen. Send some of your clients to conch, then ask again.")
	}
	length := window(s)
	if in.Traffic != nil {
		length = max(time.Millisecond, in.Traffic.Length)
	}
	w.rate, w.rarest = j.total/length.Seconds(), 1
	for name := range j.keep {
		w.rarest = min(w.rarest, counts[name]/j.total)
	}
	a.Rate = w.rate
	only(s, j.keep)
	a.note("several instances of a model on one GPU: it is simulated with one, as if a GPU ran one batch at a time; preferred batch sizes, queue policies, priorities and the rate limiter of your servers.")
	if several {
		a.note("which models have instances on which GPUs of a server over several: each is simulated with one on every GPU, of which the one that has been idle longest executes the next batch.")
	}
	if len(in.Seen) == 0 {
		a.note("whether the simulation of your Triton agrees with what it does: it is held against traffic that advise looks at itself, in mode observe (not with --for 0, nor with a trace).")
	}
	a.note("what other callers of the servers do, and the microseconds that Conch itself adds.")
	w.snapshot = s
	return w
}

// window is what the rates of a snapshot cover.
func window(s *policy.Snapshot) time.Duration {
	if seconds := s.GetStatistics().GetWindowSeconds(); seconds > 0 {
		return time.Duration(seconds * float64(time.Second))
	}
	return liveWindow
}

func sorted(m map[string]float64) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// length of a trial at a rate.
func (w *world) length(rate float64) time.Duration {
	enough := min(rareRequests/w.rarest, mostRequests) / rate
	return max(trial, time.Duration(enough*float64(time.Second)))
}

// streams are the arrivals of a trial at a rate that is so long: pieces of what was recorded in random order, faster or slower, or generated.
func (w *world) streams(s *policy.Snapshot, rate float64, length time.Duration, seed uint64) ([]workload.Stream, error) {
	if w.in.Traffic != nil {
		return []workload.Stream{w.resampled(s, rate/w.rate, length, seed)}, nil
	}
	return w.generated(s, rate, seed)
}

// generated are arrivals of the models' burstiness.
func (w *world) generated(s *policy.Snapshot, rate float64, seed uint64) ([]workload.Stream, error) {
	var all []workload.Stream
	generate := func(name string, own, rows float64) error {
		burstiness := 1.
		for _, m := range w.in.Snapshot.GetModels() {
			if m.GetName() == name {
				burstiness = m.GetBurstiness()
			}
		}
		arrivals, err := workload.Renewal{
			Model: int32(len(all)), Rows: int32(max(1, rows+.5)), Shape: 1 / max(.05, burstiness), //nolint:gosec // few models, and rows of a batch
			Curve: workload.Constant(own * rate / w.rate), Random: workload.Seed(seed, "arrivals", name),
		}.Stream()
		if err != nil {
			return fmt.Errorf("advise: model %s: %w", name, err)
		}
		all = append(all, arrivals)
		return nil
	}
	direct := proto.CloneOf(s)
	direct.Unload()
	for _, m := range direct.GetModels() {
		if err := generate(m.GetName(), m.GetRate(), m.GetRowRate()/max(1e-9, m.GetRate())); err != nil {
			return nil, err
		}
	}
	for _, p := range s.GetPipelines() {
		if err := generate(p.GetName(), p.GetRate(), p.GetRows()); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// resampled is a block bootstrap: pieces of about a second, drawn with replacement, keep the bursts within models and across them. Every seed
// first draws a recording of the same length, and its trials from that: the spread over seeds then has in it that another recording
// would have been another, which counts for much where it is short.
func (w *world) resampled(s *policy.Snapshot, faster float64, trial time.Duration, seed uint64) workload.Stream {
	t, index := w.in.Traffic, indexOf(s)
	pieces := max(1, min(int(t.Length/time.Second), 1000))
	length := t.Length / time.Duration(pieces)
	random := workload.Seed(seed, "pieces", "")
	drawn := make([]time.Duration, pieces)
	for i := range drawn {
		drawn[i] = time.Duration(random.IntN(pieces)) * length
	}
	var all []workload.Arrival
	need := time.Duration(float64(trial) * faster)
	for at := time.Duration(0); at < need; at += length {
		from := drawn[random.IntN(pieces)]
		i, _ := slices.BinarySearchFunc(t.Arrivals, from, func(a workload.Arrival, v time.Duration) int { return int(a.At - v) })
		for ; i < len(t.Arrivals) && t.Arrivals[i].At < from+length; i++ {
			arrival := t.Arrivals[i]
			model, ok := index[t.Models[arrival.Model].Name]
			if !ok {
				continue
			}
			arrival.Model = model
			arrival.At = time.Duration(float64(at+arrival.At-from) / faster)
			all = append(all, arrival)
		}
	}
	return workload.Slice(all...)
}

// indexOf is where streams have the models of a snapshot, and its ensembles behind them.
func indexOf(s *policy.Snapshot) map[string]int32 {
	index := map[string]int32{}
	for i, m := range s.GetModels() {
		index[m.GetName()] = int32(i)
	}
	for i, p := range s.GetPipelines() {
		index[p.GetName()] = int32(len(s.GetModels()) + i) //nolint:gosec // few
	}
	return index
}

// asRecorded is the recording itself.
func (w *world) asRecorded(s *policy.Snapshot) workload.Stream {
	var all []workload.Arrival
	index := indexOf(s)
	for _, a := range w.in.Traffic.Arrivals {
		if model, ok := index[w.in.Traffic.Models[a.Model].Name]; ok {
			a.Model = model
			all = append(all, a)
		}
	}
	return workload.Slice(all...)
}

// Only leaves what the names are asked for of a snapshot (JSON with the names of policy.proto), in its plan too: a model without traffic needs no profile to
// be simulated. Of an ensemble its steps' models stay.
func Only(snapshot []byte, names map[string]bool) ([]byte, error) {
	var s policy.Snapshot
	if err := protojson.Unmarshal(snapshot, &s); err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	s.Unload()
	only(&s, names)
	return encode(&s)
}

func encode(s *policy.Snapshot) ([]byte, error) {
	encoded, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	return encoded, nil
}

// only leaves the named models and ensembles of a snapshot whose models have the rates that clients ask of them, and puts into these rates what the
// ensembles ask of their steps' models.
func only(s *policy.Snapshot, names map[string]bool) {
	keep, models := map[string]bool{}, map[string]*policy.Model{}
	s.Pipelines = slices.DeleteFunc(s.GetPipelines(), func(p *policy.Pipeline) bool { return !names[p.GetName()] })
	for name := range names {
		keep[name] = true
	}
	for _, p := range s.GetPipelines() {
		for _, step := range p.GetSteps() {
			keep[step.GetModel()] = true
		}
	}
	s.Models = slices.DeleteFunc(s.GetModels(), func(m *policy.Model) bool { return !keep[m.GetName()] })
	for _, m := range s.GetModels() {
		if models[m.GetName()] = m; !names[m.GetName()] {
			m.Rate, m.RowRate = 0, 0
		}
	}
	for _, p := range s.GetPipelines() {
		p.Load(models)
	}
	for _, p := range s.GetCurrent().GetPartitions() {
		p.Instances = slices.DeleteFunc(p.GetInstances(), func(i *policy.Instance) bool { return !keep[i.GetModel()] })
	}
	if s.GetCurrent() != nil {
		s.Current.Dispatch = slices.DeleteFunc(s.GetCurrent().GetDispatch(), func(d *policy.Dispatch) bool { return !keep[d.GetModel()] })
	}
}
