package repo

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

var errUnfinished = errors.New("being written")

// Store holds the revisions. Its methods may be called from any goroutine.
type Store struct{}

// Open opens (or makes) the store in directory dir. One process at a time.
func Open(dir string) (*Store, error) { return nil, errUnfinished }

// Close closes the store.
func (s *Store) Close() error { return nil }

// Import reads dir into a new revision, which becomes the current one. Where nothing changed, the current revision is returned.
func (s *Store) Import(ctx context.Context, dir string, by Origin) (*Revision, error) {
	return nil, errUnfinished
}

// Rollback makes a new revision with the models of an earlier one.
func (s *Store) Rollback(ctx context.Context, id string, by Origin) (*Revision, error) {
	return nil, errUnfinished
}

// Current is the newest revision; ErrNoRevision before the first import.
func (s *Store) Current() (*Revision, error) { return nil, errUnfinished }

// Get finds a revision by id.
func (s *Store) Get(id string) (*Revision, error) { return nil, errUnfinished }

// Log lists up to limit revisions (0: all), newest first.
func (s *Store) Log(limit int) ([]*Revision, error) { return nil, errUnfinished }

// List lists the models of a revision by name, of the current one for an empty id.
func (s *Store) List(id string) ([]*Model, error) { return nil, errUnfinished }

// Stage makes dir hold the named models of a revision.
func (s *Store) Stage(ctx context.Context, revision string, models []string, dir string) error {
	return errUnfinished
}

// Unstage removes the named models from dir; without names, dir itself.
func (s *Store) Unstage(ctx context.Context, dir string, models ...string) error { return errUnfinished }

// Collected is what Collect removed.
type Collected struct {
	Revisions, Files int
	Bytes            int64
}

// Collect forgets all but the newest keep revisions and removes files that no revision names.
func (s *Store) Collect(ctx context.Context, keep int) (Collected, error) {
	return Collected{}, errUnfinished
}

// ReadConfig reads a config.pbtxt into Triton's message; fields that we do not know are skipped.
func ReadConfig(text []byte) (*tritonpb.ModelConfig, error) { return nil, errUnfinished }

// Manage edits a config.pbtxt into the one that Conch serves with.
func Manage(text []byte) ([]byte, error) { return nil, errUnfinished }

// SLO reads parameter slo_ms.
func SLO(c *tritonpb.ModelConfig) (slo time.Duration, ok bool, err error) { return 0, false, nil }

// Batchable says whether requests of the model may share a batch, and why not.
func Batchable(c *tritonpb.ModelConfig) (ok bool, reason string) { return false, "" }

// ServedVersions are the versions that Triton would load by the version policy, ascending.
func ServedVersions(c *tritonpb.ModelConfig, versions []int64) []int64 { return nil }

// Validate says what Triton would refuse about the model directory `name` of fsys.
func Validate(fsys fs.FS, name string) []Problem { return nil }

// ValidateAll validates every model directory of fsys.
func ValidateAll(fsys fs.FS) ([]Problem, error) { return nil, nil }
