// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/goccy/go-yaml"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/conch-serving/conch/plugins/policy"
)

// ErrScenario is wrapped by errors about files that are no good scenario.
var ErrScenario = errors.New("scenario")

// maxBytes bounds a file; the snapshot of a thousand models has some megabytes.
const maxBytes = 64 << 20

// Parse decodes a scenario, strictly: unknown and repeated keys and values of the wrong kind are errors with line and column.
func Parse(name string, data []byte) (*Scenario, error) {
	wrong := func(err error) error { return fmt.Errorf("%w %s: %w", ErrScenario, name, err) }
	if len(data) > maxBytes {
		return nil, wrong(fmt.Errorf("%d bytes; at most %d", len(data), maxBytes))
	}
	s := &Scenario{}
	if err := decode(data, s); err != nil {
		return nil, wrong(err)
	}
	if err := s.check(); err != nil {
		return nil, wrong(err)
	}
	return s, nil
}

func decode(data []byte, into *Scenario) (err error) {
	// The library's decoder panics on some malformed documents, for example on a list that is a tag without a value. Nothing of ours runs
	// inside it but Duration.UnmarshalText.
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("malformed YAML: %v", fault)
		}
	}()
	decoder := yaml.NewDecoder(bytes.NewReader(data), yaml.Strict())
	if err := decoder.Decode(into); err != nil {
		if errors.Is(err, io.EOF) {
			return errors.New("the file is empty")
		}
		return err
	}
	if err := decoder.Decode(&Scenario{}); !errors.Is(err, io.EOF) {
		return errors.New("a second document; a scenario is one")
	}
	return nil
}

func (s *Scenario) check() error {
	switch {
	case s.APIVersion != APIVersion:
		return fmt.Errorf("apiVersion is %q, must be %q", s.APIVersion, APIVersion)
	case s.Snapshot != nil && (len(s.GPUs) > 0 || len(s.Interference) > 0 || len(s.Offers) > 0):
		return errors.New("gpus, offers and interference come from the snapshot: leave them out")
	case s.Snapshot == nil && len(s.GPUs) == 0:
		return errors.New("gpus: there are none, and no snapshot")
	case s.Snapshot == nil && len(s.Models) == 0:
		return errors.New("models: there are none, and no snapshot")
	case s.Policy != nil && s.Plan != nil:
		return errors.New("policy and plan: one of them says where models are, not both")
	case s.Zipf != nil && s.Rate == 0:
		return errors.New("zipf divides a rate: give one")
	case !(s.Rate >= 0) || s.Rate > maxRate:
		return fmt.Errorf("rate %g is no number of requests per second up to %g", s.Rate, maxRate)
	case s.Duration == 0 && s.Trace == nil:
		return errors.New("duration: give one, or a trace")
	case s.ExpectInterference != "" && s.ExpectInterference != "worst" && s.ExpectInterference != "none":
		return fmt.Errorf("expectInterference is %q, must be worst or none", s.ExpectInterference)
	}
	if p := s.Plan; p != nil && (len(p.Partitions) > 0) == (p.Subclusters > 0) || s.Plan != nil && s.Plan.Subclusters < 0 {
		return errors.New("plan: give partitions, or a number of subclusters")
	}
	for i, g := range s.GPUs {
		if g.Type == "" || g.Count < 0 || g.Count > maxCount {
			return fmt.Errorf("gpus[%d]: type %q, count %d; a type is needed, and a count from 1 to %d", i, g.Type, g.Count, maxCount)
		}
	}
	for i, m := range s.Models {
		if err := m.check(s.Snapshot != nil); err != nil {
			return fmt.Errorf("models[%d] %s: %w", i, m.Name, err)
		}
	}
	return nil
}

const (
	maxCount = 100_000
	maxRate  = 1e12
	maxRows  = 1 << 16
)

func (m Model) check(known bool) error {
	switch {
	case m.Name == "":
		return errors.New("it needs a name")
	case m.Count < 0 || m.Count > maxCount:
		return fmt.Errorf("count %d is not from 1 to %d", m.Count, maxCount)
	case !(m.Rate >= 0 && m.Rate <= maxRate) || !(m.Weight >= 0 && m.Weight <= maxRate):
		return fmt.Errorf("rate %g and weight %g must be numbers from 0 to %g", m.Rate, m.Weight, maxRate)
	case m.Late != "" && m.Late != "serve" && m.Late != "drop":
		return fmt.Errorf("late is %q, must be serve or drop", m.Late)
	case m.MaxBatch > maxRows:
		return fmt.Errorf("maxBatch %d is above %d", m.MaxBatch, maxRows)
	case known && (m.Count > 1 || m.Profile != nil || len(m.Profiles) > 0 || m.MaxBatch > 0 || m.MemoryBytes > 0):
		return errors.New("beside a snapshot a model changes slo, late, rate, weight, arrivals, dispatch and load only")
	case !known && (m.Profile == nil) == (len(m.Profiles) == 0):
		return errors.New("give one profile, or profiles for several GPU types")
	}
	return nil
}

// FromSnapshot makes a scenario of a snapshot (JSON with the names of policy.proto) and a trace beside the scenario's file: what a live
// Conch saw, to be replayed under its own plan, with a queue that learns delays as that Conch's does. An empty trace generates arrivals at the snapshot's rates for a minute. Where the snapshot
// has no current plan, every model is on every GPU.
func FromSnapshot(snapshot []byte, trace *Trace) (*Scenario, error) {
	var parsed policy.Snapshot
	if err := protojson.Unmarshal(snapshot, &parsed); err != nil {
		return nil, fmt.Errorf("%w of a snapshot: %w", ErrScenario, err)
	}
	s := &Scenario{APIVersion: APIVersion, Name: fmt.Sprintf("snapshot %d", parsed.GetRevision()), Seed: max(1, parsed.GetSeed()), Trace: trace, LearnDelays: true}
	decoder := json.NewDecoder(bytes.NewReader(snapshot))
	decoder.UseNumber()
	if err := decoder.Decode(&s.Snapshot); err != nil {
		return nil, fmt.Errorf("%w of a snapshot: %w", ErrScenario, err)
	}
	if trace == nil {
		s.Duration = Duration(60e9)
	}
	return s, s.check()
}

// Marshal writes the scenario as JSON, which Parse reads.
func (s *Scenario) Marshal() ([]byte, error) {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("%w %s: %w", ErrScenario, s.Name, err)
	}
	return append(text, '\n'), nil
}
