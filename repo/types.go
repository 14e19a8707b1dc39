// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package repo

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// What a Store's methods can fail with; test with errors.Is.
var (
	// ErrNoRevision: there is no revision of that id, or none at all yet.
	ErrNoRevision = errors.New("no such repository revision")
	// ErrNoModel: the revision has no model of that name.
	ErrNoModel = errors.New("no such model in the repository revision")
	// ErrInvalidModel: the model has problems that Triton would refuse it for.
	ErrInvalidModel = errors.New("model cannot be loaded")
	// ErrOverride: what a client sent in place of a model's files is no model.
	ErrOverride = errors.New("override cannot be used")
)

// Origin is the author, the reason and the time of a change of the repository.
type Origin struct {
	Author string    `json:"author"`
	Reason string    `json:"reason"`
	Time   time.Time `json:"time"`
}

// Revision is one state of the repository. It never changes.
type Revision struct {
	// ID is "r" and a number that grows with every revision.
	ID string `json:"id"`
	// Parent is the revision that this one followed, empty for the first.
	Parent string `json:"parent,omitempty"`
	Origin
	// Directory is the operator's directory that was read; a rollback keeps that
	// of the revision it goes back to.
	Directory string `json:"directory"`
	// RollbackTo is the revision whose models this one repeats.
	RollbackTo string `json:"rollback_to,omitempty"`
	// Held is set from a rollback until the next import: a process that starts leaves the
	// directory unread, which would take the rollback back.
	Held bool `json:"held,omitempty"`
	// Models are sorted by name, those with problems included.
	Models []*Model `json:"models"`
	// Diff is what changed since the parent.
	Diff Diff `json:"diff"`
	// Stale are the derived models that this revision leaves out because a member
	// changed: they can be made again.
	Stale []Derivation `json:"stale,omitempty"`
	// Unloaded are models of servers that others run: earlier revisions had them, and their servers serve them no more.
	Unloaded []*Model `json:"-"`
}

// Model finds a model by name; nil if the revision has none of that name.
func (r *Revision) Model(name string) *Model {
	for _, m := range r.Models {
		if m.Name == name {
			return m
		}
	}
	return nil
}

// Model is one model directory as a revision holds it.
type Model struct {
	Name string `json:"name"`
	// Digest is the SHA-256, in hex, over all files: equal digests are equal
	// models.
	Digest string `json:"digest"`
	// Files are the operator's, sorted by path.
	Files []File `json:"files"`
	// Versions are the numbers of the version directories, ascending.
	Versions []int64 `json:"versions"`
	// Managed is the config.pbtxt that Conch stages in place of the operator's:
	// max_batch_size set outright, dynamic_batching empty if Conch batches it. Its Digest is empty
	// where the config cannot be read.
	Managed File `json:"managed"`
	// Config is the managed config, with the name that Triton fills in; nil where it
	// cannot be read.
	Config *tritonpb.ModelConfig `json:"-"`
	// Written is the configuration as its author wrote it, with the name that
	// Triton fills in: Config with all that its dynamic_batching said. nil where it
	// cannot be read.
	Written *tritonpb.ModelConfig `json:"-"`
	// Problems are what is wrong with the model, errors first.
	Problems []Problem `json:"problems,omitempty"`

	// Unloaded is set from a client's unload until a client loads the model again.
	Unloaded bool `json:"unloaded,omitempty"`
	// Dependent is set on a model that was loaded because an ensemble calls it, and
	// not by an order of its own: an unload of the ensemble may take it along.
	Dependent bool `json:"dependent,omitempty"`
	// Override says that a client's load put something in place of the operator's
	// files; nil where Files are the operator's.
	Override *Override `json:"override,omitempty"`
	// Generation counts the loads that a client ordered after the times of the
	// operator's files had changed: Triton loads a model again then, whether or not
	// its content changed.
	Generation uint64 `json:"generation,omitempty"`
	// Derived says of a part of a derived model what it was made of; nil for the
	// operator's models.
	Derived *Derivation `json:"derived,omitempty"`
	// Times is a digest of the modification times of the operator's files.
	Times string `json:"times,omitempty"`
}

// Override is what a client's load put in place of the operator's files.
type Override struct {
	// Base identifies the operator's files that were there then; empty where there
	// were none. While they stay the same, a config that was given stays too.
	Base string `json:"base,omitempty"`
	// Directory is set where the whole directory was replaced, and not only its
	// configuration.
	Directory bool `json:"directory,omitempty"`
}

// Revision identifies what a server would load: it changes exactly when the
// model has to be loaded again.
func (m *Model) Revision() string {
	if m.Generation == 0 {
		return m.Digest
	}
	return m.Digest + "." + strconv.FormatUint(m.Generation, 10)
}

// Loads reports whether a server that has loaded m would have to load other.
func (m *Model) Loads(other *Model) bool {
	return m.Revision() != other.Revision() || m.Managed.Digest != other.Managed.Digest
}

// RevisionParameter is the parameter of a staged config.pbtxt in which a server
// says which revision of the model it has loaded.
const RevisionParameter = "conch_revision"

// StagedRevision is the value of RevisionParameter in the staged config.pbtxt:
// short, and another exactly when Loads says so.
func (m *Model) StagedRevision() string {
	sum := sha256.Sum256([]byte(stageDigest(m)))
	return hex.EncodeToString(sum[:8])
}

// Err is nil for a model that Triton would load, else an error that wraps
// ErrInvalidModel and names every problem that stands in the way.
func (m *Model) Err() error {
	var refusals []error
	for _, p := range m.Problems {
		if p.Severity == SeverityError {
			refusals = append(refusals, p)
		}
	}
	if len(refusals) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrInvalidModel, errors.Join(refusals...))
}

// Size is the number of bytes of the model's files: a first guess of the memory
// that its weights take.
func (m *Model) Size() int64 {
	var total int64
	for _, f := range m.Files {
		total += f.Size
	}
	return total
}

// File is one file of a model.
type File struct {
	// Path is relative to the model directory, with slashes.
	Path string `json:"path"`
	// Digest is the SHA-256 of the content in hex.
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
	// Executable files keep that bit (a stub of the python backend, for one).
	Executable bool `json:"executable,omitempty"`
}

// Diff is what changed between two revisions. Every list is sorted.
type Diff struct {
	Added   []string      `json:"added,omitempty"`
	Removed []string      `json:"removed,omitempty"`
	Changed []ModelChange `json:"changed,omitempty"`
	// Loaded were unloaded, or are to be loaded again with the content that they
	// have. Unloaded are no longer served.
	Loaded   []string `json:"loaded,omitempty"`
	Unloaded []string `json:"unloaded,omitempty"`
}

// Empty reports that nothing changed.
func (d Diff) Empty() bool {
	return len(d.Added)+len(d.Removed)+len(d.Changed)+len(d.Loaded)+len(d.Unloaded) == 0
}

// ChangedModels are the names of the changed models.
func (d Diff) ChangedModels() []string {
	names := make([]string, len(d.Changed))
	for i, c := range d.Changed {
		names[i] = c.Model
	}
	return names
}

// ModelChange lists the files of one model that differ.
type ModelChange struct {
	Model   string   `json:"model"`
	Added   []string `json:"added,omitempty"`
	Removed []string `json:"removed,omitempty"`
	Changed []string `json:"changed,omitempty"`
}

// Severity says what a Problem prevents.
type Severity string

const (
	// SeverityError means that Triton would refuse the model, or hang on it.
	SeverityError Severity = "error"
	// SeverityWarning means that Triton would load it, and it would not do what was meant.
	SeverityWarning Severity = "warning"
)

// Problem is one thing that is wrong with a model. It is an error.
type Problem struct { //nolint:errname // a finding about a model first, an error where it is returned
	Severity Severity `json:"severity"`
	// File is relative to the repository, with slashes; it may name a directory.
	File string `json:"file"`
	// Line counts from 1; 0 where the problem is not in a line.
	Line int `json:"line,omitempty"`
	// Text says what is wrong and what to do.
	Text string `json:"text"`
	// NoVersion: the model has no version to serve, which Triton says at a load in words
	// of its own.
	NoVersion bool `json:"no_version,omitempty"`
	// ofStore is set where conch's copy is damaged, and the model as it was imported
	// is not: the problem ends with the damage, and is not written down.
	ofStore bool
}

// Error is the problem as "file:line: text".
func (p Problem) Error() string {
	if p.Line > 0 {
		return fmt.Sprintf("%s:%d: %s", p.File, p.Line, p.Text)
	}
	return p.File + ": " + p.Text
}
