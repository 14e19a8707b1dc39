// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package api

import "time"

// RepositoryRevision is one state of the model repository.
type RepositoryRevision struct {
	ID     string    `json:"id"`
	Parent string    `json:"parent,omitempty"`
	Time   time.Time `json:"time"`
	Author string    `json:"author"`
	Reason string    `json:"reason"`
	// Directory was read for it, or for the revision that a rollback repeats.
	Directory string   `json:"directory,omitempty"`
	Models    []string `json:"models"`
	Added     []string `json:"added,omitempty"`
	Removed   []string `json:"removed,omitempty"`
	Changed   []string `json:"changed,omitempty"`
	// Loaded and Unloaded are models that clients or operators loaded again or unloaded.
	Loaded   []string `json:"loaded,omitempty"`
	Unloaded []string `json:"unloaded,omitempty"`
	// RollbackTo is the revision whose models this one repeats. Held: a rollback holds,
	// and conch does not read the directory when it starts.
	RollbackTo string `json:"rollback_to,omitempty"`
	Held       bool   `json:"held,omitempty"`
	// Problems are those of its models, those that keep a model from being served first.
	Problems []RepositoryProblem `json:"problems,omitempty"`
	Current  bool                `json:"current"`
	// Unchanged: an import found what there was, and made no revision. This is the one that there was, without what it changed when it was made.
	Unchanged bool `json:"unchanged,omitempty"`
}

// RepositoryProblem is one thing that is wrong with a model of the repository.
type RepositoryProblem struct {
	Model string `json:"model"`
	// Refused: the model cannot be served because of it.
	Refused bool   `json:"refused"`
	Text    string `json:"text"`
}

// RollbackRequest makes the models of an earlier revision the present ones again.
type RollbackRequest struct {
	Revision string `json:"revision"`
	Author   string `json:"author,omitempty"`
	Reason   string `json:"reason,omitempty"`
}

// ImportRequest reads a model repository into a new revision. An empty
// Directory reads the configured one again.
type ImportRequest struct {
	Directory string `json:"directory,omitempty"`
	Author    string `json:"author,omitempty"`
	Reason    string `json:"reason,omitempty"`
}

// ImportProgress is how far an import is: the bytes of the directory's files that were read, or are in the store already, and the model that is
// read now.
type ImportProgress struct {
	DoneBytes int64  `json:"done_bytes"`
	AllBytes  int64  `json:"all_bytes"`
	Model     string `json:"model,omitempty"`
}

// RepositoryDiff is what differs between two revisions.
type RepositoryDiff struct {
	From   string      `json:"from,omitempty"`
	To     string      `json:"to"`
	Models []ModelDiff `json:"models"`
	// Partial: From is kept no more. Models are what To noted down of it: sizes before
	// are -1, and fields are left out.
	Partial bool `json:"partial,omitempty"`
}

// ModelDiff is what differs of one model. Change is added, removed or changed; it is
// empty where only Notes differ.
type ModelDiff struct {
	Model  string   `json:"model"`
	Change string   `json:"change,omitempty"`
	Notes  []string `json:"notes,omitempty"`
	// Files that differ; of a new or removed model all.
	Files []FileDiff `json:"files,omitempty"`
	// Fields of config.pbtxt that differ. Text says why they cannot be compared, or
	// that nothing but form differs.
	Fields []FieldDiff `json:"fields,omitempty"`
	Text   string      `json:"text,omitempty"`
}

// FileDiff is a file that differs.
type FileDiff struct {
	Path        string `json:"path"`
	Change      string `json:"change"`
	BeforeBytes int64  `json:"before_bytes,omitempty"`
	AfterBytes  int64  `json:"after_bytes,omitempty"`
}

// FieldDiff is a field of a config.pbtxt that differs, with its comments. Line is that
// in the newer file; of a removed field, in the older one.
type FieldDiff struct {
	Field  string `json:"field"`
	Change string `json:"change"`
	Line   int    `json:"line"`
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
}

// CollectRequest removes old revisions of the repository and their content.
type CollectRequest struct {
	// Keep that many of the newest revisions; 0 means as many as conch keeps by itself.
	Keep   int    `json:"keep,omitempty"`
	DryRun bool   `json:"dry_run,omitempty"`
	Author string `json:"author,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Collected is what was removed, or would be.
type Collected struct {
	DryRun    bool           `json:"dry_run"`
	Revisions []string       `json:"revisions"`
	Kept      []KeptRevision `json:"kept"`
	Files     int            `json:"files"`
	Bytes     int64          `json:"bytes"`
}

// KeptRevision is a revision and what it is kept for.
type KeptRevision struct {
	Revision string `json:"revision"`
	For      string `json:"for"`
}

// VerifyRequest reads all content of the repository's revisions again.
type VerifyRequest struct {
	// Mend takes damaged content out, so that the next import writes it anew.
	Mend   bool   `json:"mend,omitempty"`
	Author string `json:"author,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Verified is what was found.
type Verified struct {
	Files   int           `json:"files"`
	Bytes   int64         `json:"bytes"`
	Damaged []DamagedFile `json:"damaged"`
}

// DamagedFile is a file of a revision whose content is not what was imported.
type DamagedFile struct {
	Revision string `json:"revision"`
	Model    string `json:"model"`
	File     string `json:"file"`
	Text     string `json:"text"`
	// Current: the revision is the one that is planned for.
	Current bool `json:"current"`
	// Taken: the damaged content was taken out.
	Taken bool `json:"taken"`
}
