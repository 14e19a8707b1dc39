// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

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
	for _, err := range []error{s.check(), s.counts(data)} {
		if err != nil {
			return nil, wrong(located(data, err))
		}
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
		return brief(err)
	}
	if err := decoder.Decode(&Scenario{}); !errors.Is(err, io.EOF) {
		return errors.New("a second document; a scenario is one")
	}
	return nil
}

// brief leaves the file's own text out of an error that would show much of it, or what is no text: the decoder shows the whole value that is
// wrong, which in a file that is no scenario at all, such as a recorded trace, is the file.
func brief(err error) error {
	const mostLines, mostBytes = 16, 4096
	text := err.Error()
	odd := func(r rune) bool {
		return r == utf8.RuneError || unicode.IsControl(r) && r != '\n' && r != '\t' && r != '\r'
	}
	if strings.Count(text, "\n") <= mostLines && len(text) <= mostBytes && !strings.ContainsFunc(text, odd) {
		return err
	}
	return fmt.Errorf("%s; is it a scenario? One begins with apiVersion: %s", yaml.FormatError(err, false, false), APIVersion)
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
