// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package evaluate

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// Sources of a [Traffic], as policy.Traffic names them.
const (
	SourceRecorded  = "recorded"
	SourceGenerated = "generated"
)

// DefaultLength is how much traffic is generated unless a length is given.
const DefaultLength = 10 * time.Second

// MaxRequests bounds the arrivals of one traffic: about 40 MiB.
const MaxRequests = 1 << 20

// Traffic is arrivals by the names that clients asked for: models and apps. It does not change.
type Traffic struct {
	// Names are what Arrival.Model of the arrivals counts in.
	Names []string
	// Arrivals are in order of time, from 0.
	Arrivals []workload.Arrival
	// Length is how long they were collected.
	Length time.Duration
	// Source is [SourceRecorded] or [SourceGenerated].
	Source string
}

// Promise names the traffic that [Generate] will draw for the snapshot, without drawing it: its digest covers all that the arrivals depend
// on. A snapshot without load gets none.
func Promise(s *policy.Snapshot, length time.Duration) *policy.Traffic {
	h, total := sha256.New(), 0.0
	var b [8]byte
	number := func(v float64) {
		binary.LittleEndian.PutUint64(b[:], math.Float64bits(v))
		_, _ = h.Write(b[:])
	}
	_ = each(s, func(name string, rate, rows, burstiness float64) error { // the function below never fails
		total += rate
		_, _ = io.WriteString(h, name)
		_, _ = h.Write([]byte{0})
		number(rate)
		number(rows)
		number(burstiness)
		return nil
	})
	if total == 0 {
		return nil
	}
	length = capped(length, total)
	number(length.Seconds())
	binary.LittleEndian.PutUint64(b[:], s.GetSeed())
	_, _ = h.Write(b[:])
	return &policy.Traffic{
		Digest: hex.EncodeToString(h.Sum(nil)), Source: SourceGenerated, Seconds: length.Seconds(), Requests: uint64(total * length.Seconds()),
	}
}

// each calls visit for every model, pipeline and app that is asked for by its name: its rate in requests per second, the rows of a request, and the squared coefficient
// of variation of the times between arrivals.
func each(s *policy.Snapshot, visit func(name string, rate, rows, burstiness float64) error) error {
	loaded := func(rate float64) bool { return rate > 0 && !math.IsInf(rate, 0) }
	for _, m := range s.GetModels() {
		// What came by the names of apps is theirs, and what ensembles ask of it comes with their requests.
		if own := s.DirectRate(m); loaded(own) {
			if err := visit(m.GetName(), own, m.GetRowRate()/m.GetRate(), m.GetBurstiness()); err != nil {
				return err
			}
		}
	}
	for _, p := range s.GetPipelines() {
		if loaded(p.GetRate()) && !slices.ContainsFunc(s.GetModels(), func(m *policy.Model) bool { return m.GetName() == p.GetName() }) {
			if err := visit(p.GetName(), p.GetRate(), cmp.Or(p.GetRows(), 1), 1); err != nil {
				return err
			}
		}
	}
	for _, a := range s.GetApps() {
		if loaded(a.GetRate()) {
			if err := visit(a.GetName(), a.GetRate(), 1, 1); err != nil {
				return err
			}
		}
	}
	return nil
}

// capped is the length of a traffic that holds at most MaxRequests.
func capped(length time.Duration, rate float64) time.Duration {
	if length <= 0 {
		length = DefaultLength
	}
	// In floating point: at a rate of next to nothing MaxRequests take longer than a Duration can say.
	return time.Duration(min(float64(length), MaxRequests/rate*float64(time.Second)))
}

// Generate draws arrivals for the rates, row rates and burstiness of the snapshot's models and the rates of its pipelines and apps, by its seed: equal
// snapshots get equal arrivals. Where they would be more than [MaxRequests] the traffic is shorter.
func Generate(s *policy.Snapshot, length time.Duration) (*Traffic, error) {
	return generate(s, length, "evaluate", func(_ string, rate float64) float64 { return rate })
}

// generate draws by the snapshot's seed for a purpose; purposes are independent of each other. Level is the rate of a name, which is
// given that of the snapshot.
func generate(s *policy.Snapshot, length time.Duration, purpose string, level func(name string, rate float64) float64) (*Traffic, error) {
	t := &Traffic{Source: SourceGenerated}
	var streams []workload.Stream
	total := 0.0
	if err := each(s, func(name string, rate, rows, burstiness float64) error {
		if rate = level(name, rate); rate == 0 {
			return nil
		}
		total += rate
		shape := 1.0
		if burstiness > 0 {
			shape = min(1/burstiness, 20)
		}
		stream, err := workload.Renewal{
			Model: int32(len(t.Names)), Rows: int32(max(1, min(rows, 1<<20)+.5)), Shape: max(.01, shape),
			Curve: workload.Constant(rate), Random: workload.Seed(s.GetSeed(), purpose, name),
		}.Stream()
		if err != nil {
			return fmt.Errorf("evaluate: arrivals of %s: %w", name, err)
		}
		t.Names = append(t.Names, name)
		streams = append(streams, stream)
		return nil
	}); err != nil {
		return nil, err
	}
	length = capped(length, max(total, 1e-9))
	t.Length = length
	for _, stream := range streams {
		var a workload.Arrival
		for stream.Next(&a) && a.At < length && len(t.Arrivals) < 2*MaxRequests {
			t.Arrivals = append(t.Arrivals, a)
		}
	}
	slices.SortStableFunc(t.Arrivals, func(a, b workload.Arrival) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Model, b.Model))
	})
	return t, nil
}

// Read takes the arrivals of a recorded trace (workload.Reader), at most [MaxRequests] of them. A trace that ends in the middle of an entry
// is read as far as it goes.
func Read(r io.Reader) (*Traffic, error) {
	reader, err := workload.NewReader(r)
	if err != nil {
		return nil, err
	}
	t := &Traffic{Source: SourceRecorded}
	var a workload.Arrival
	for len(t.Arrivals) < MaxRequests && reader.Next(&a) {
		t.Arrivals = append(t.Arrivals, a)
		t.Length = max(t.Length, a.At+1)
	}
	for _, m := range reader.Models() {
		t.Names = append(t.Names, m.Name)
	}
	slices.SortStableFunc(t.Arrivals, func(a, b workload.Arrival) int { return cmp.Compare(a.At, b.At) })
	return t, nil
}

// Write writes the arrivals as a recorded trace.
func (t *Traffic) Write(w io.Writer) error {
	trace, err := workload.NewWriter(w, workload.Header{Source: t.Source})
	if err != nil {
		return err
	}
	for _, name := range t.Names {
		if _, err := trace.Model(workload.TraceModel{Name: name}); err != nil {
			return err
		}
	}
	for _, a := range t.Arrivals {
		if err := trace.Write(a); err != nil {
			return err
		}
	}
	return trace.Flush()
}

// Describe is the traffic as a snapshot names it. The digest covers names, times, rows and deadlines.
func (t *Traffic) Describe() *policy.Traffic {
	h := sha256.New()
	for _, name := range t.Names {
		_, _ = io.WriteString(h, name)
		_, _ = h.Write([]byte{0})
	}
	var b [24]byte
	for _, a := range t.Arrivals {
		binary.LittleEndian.PutUint64(b[:], uint64(a.At))
		binary.LittleEndian.PutUint32(b[8:], uint32(a.Model))
		binary.LittleEndian.PutUint32(b[12:], uint32(a.Rows))
		binary.LittleEndian.PutUint64(b[16:], uint64(a.Deadline))
		_, _ = h.Write(b[:])
	}
	return &policy.Traffic{
		Digest: hex.EncodeToString(h.Sum(nil)), Source: t.Source, Seconds: t.Length.Seconds(), Requests: uint64(len(t.Arrivals)),
	}
}
