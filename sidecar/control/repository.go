// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/control/events"
	"github.com/conch-serving/conch/sidecar/observe"
)

// Revisions lists the repository's revisions, newest first.
func (c *Control) Revisions(context.Context) ([]*repo.Revision, error) {
	return c.repository.Log(0)
}

// CurrentRevision is the id of the one that is planned for; empty before the first.
func (c *Control) CurrentRevision() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.files == nil {
		return ""
	}
	return c.files.ID
}

// Import reads a model repository into a new revision and asks for a plan of
// it. Where nothing changed, the revision that there is is returned, and that it is not new. Where Triton
// would refuse a model that serves, there is no new revision. Progress is called now and then; it may be nil.
func (c *Control) Import(ctx context.Context, r api.ImportRequest, progress func(repo.Progress)) (files *repo.Revision, changed bool, err error) {
	if err := c.ready(ctx); err != nil {
		return nil, false, err
	}
	defer c.release()
	if err := c.notOthers(); err != nil {
		return nil, false, err
	}
	before := c.CurrentRevision()
	author, dir := cmp.Or(r.Author, "operator"), cmp.Or(r.Directory, c.settings().Repository)
	files, err = c.repository.ImportReporting(ctx, dir, repo.Origin{Author: author, Reason: cmp.Or(r.Reason, "import of "+dir), Time: c.clock.Now()}, progress)
	if err != nil {
		return nil, false, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if err := c.serveFiles(ctx, files, author, r.Reason); err != nil {
		return nil, false, err
	}
	return files, files.ID != before, nil
}

// Rollback makes a new revision of an earlier one's models and asks for a plan of
// it. It is judged like an import.
func (c *Control) Rollback(ctx context.Context, r api.RollbackRequest) (*repo.Revision, error) {
	if err := c.ready(ctx); err != nil {
		return nil, err
	}
	defer c.release()
	if err := c.notOthers(); err != nil {
		return nil, err
	}
	author := cmp.Or(r.Author, "operator")
	files, err := c.repository.Rollback(ctx, r.Revision, repo.Origin{Author: author, Reason: cmp.Or(r.Reason, "rollback to "+r.Revision), Time: c.clock.Now()})
	switch {
	case errors.Is(err, repo.ErrNoRevision):
		return nil, fmt.Errorf("%w: the repository has no revision %q; tritonctl repo history shows those there are", ErrNotFound, r.Revision)
	case err != nil:
		return nil, err
	}
	if err := c.serveFiles(ctx, files, author, r.Reason); err != nil {
		return nil, err
	}
	return files, nil
}

// notOthers refuses to change a repository that conch does not serve from.
func (c *Control) notOthers() error {
	if !c.Given() {
		return nil
	}
	return fmt.Errorf("%w: which models there are is up to the servers in front of which conch stands; it serves a repository of its own there in mode control, with driver.endpoints[].repository (docs/attach.md)", ErrRefused)
}

// serveFiles makes a revision the one to plan for. One that would spoil what serves
// is withdrawn.
func (c *Control) serveFiles(ctx context.Context, files *repo.Revision, author, reason string) error {
	c.mu.Lock()
	before := c.files
	c.mu.Unlock()
	if before != nil && before.ID == files.ID {
		return nil
	}
	if err := c.withdrawn(ctx, before, files, author, reason); err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	// If the new files turn out broken, what was learnt of the old ones is wanted.
	c.learnt()
	c.adopt(files, c.settings())
	message := fmt.Sprintf("repository revision %s: %s", files.ID, changes(files.Diff))
	c.event(api.Event{Kind: events.Repository, Author: author, Reason: reason, Message: message, Fields: map[string]string{"revision": files.ID, "directory": files.Directory}})
	c.collect(context.WithoutCancel(ctx), files.ID)
	c.ordered(message)
	return nil
}

// withdrawn withdraws a revision that would spoil what serves, and returns why; nil
// where it would not.
func (c *Control) withdrawn(ctx context.Context, before, files *repo.Revision, author, reason string) error {
	err := c.spoils(before, files)
	if err == nil {
		return nil
	}
	err = errors.Join(fmt.Errorf("%s stays: %w", before.ID, err), c.repository.Withdraw(context.WithoutCancel(ctx), files.ID))
	c.event(api.Event{Kind: events.Repository, Author: author, Reason: reason, Message: err.Error(), Fields: map[string]string{"revision": before.ID, "directory": files.Directory}})
	return err
}

// unspoilt is the revision to start with: that of the first import, unless it would
// spoil what served before the restart.
func (c *Control) unspoilt(ctx context.Context, served, imported *repo.Revision) *repo.Revision {
	if served.ID == imported.ID || c.withdrawn(ctx, served, imported, "conch", "start") == nil {
		return imported
	}
	if before, err := c.repository.Current(); err == nil && c.spoils(served, before) == nil {
		return before // with what clients ordered
	}
	return served
}

// spoils says which models that serve could not with these files. As with
// Triton, a model's mistake does not take away what serves; a model that is new
// is left out alone. A directory without a single model that could be served is
// taken for the wrong one, and not for an order to stop serving.
func (c *Control) spoils(before, files *repo.Revision) error {
	current := c.current()
	var errs []error
	for _, m := range files.Models {
		if len(current.PartitionsOf(m.Name)) > 0 {
			errs = append(errs, m.Err())
		}
	}
	if len(errs) == 0 && servable(files) == 0 && before != nil && servable(before) > 0 {
		errs = append(errs, fmt.Errorf("%s has no model that could be served: is it a model repository?", files.Directory))
	}
	return errors.Join(errs...)
}

// servable counts the models that Triton could load.
func servable(files *repo.Revision) (n int) {
	for _, m := range files.Models {
		if m.Err() == nil {
			n++
		}
	}
	return n
}

func changes(d repo.Diff) string {
	var parts []string
	for _, list := range []struct {
		word  string
		names []string
	}{{"added", d.Added}, {"removed", d.Removed}, {"changed", d.ChangedModels()}, {"loaded", d.Loaded}, {"unloaded", d.Unloaded}} {
		if len(list.names) > 0 {
			parts = append(parts, list.word+" "+strings.Join(list.names, ", "))
		}
	}
	if len(parts) == 0 {
		return "nothing changed"
	}
	return strings.Join(parts, "; ")
}

// CompareRevisions says what differs between two revisions of the repository.
func (c *Control) CompareRevisions(_ context.Context, from, to string) (*repo.Comparison, error) {
	found, err := c.repository.Compare(from, to)
	if errors.Is(err, repo.ErrNoRevision) {
		return nil, fmt.Errorf("%w: %w; tritonctl repo history shows those there are", ErrNotFound, err)
	}
	return found, err
}

// revisionsKept are those that can be gone back to. Older ones go by themselves,
// with the content that they alone have, once there are twice as many: after that,
// the next import reads every file again.
const revisionsKept = 50

// retention is what a collection keeps: the newest revisions, and those that a server
// may still have loaded, or may still be asked to load.
func (c *Control) retention(newest int, served string) repo.Retention {
	c.mu.Lock()
	defer c.mu.Unlock()
	use := map[string]string{}
	if c.files != nil {
		use[c.files.ID] = "it is planned for"
	}
	if c.servedBefore != "" {
		use[c.servedBefore] = "models of it may still be loaded"
	}
	if c.serving.files != nil {
		use[c.serving.files.ID] = "it serves"
	}
	if served != "" {
		use[served] = "it serves"
	}
	return repo.Retention{Newest: newest, InUse: use}
}

// collect forgets old revisions by itself.
func (c *Control) collect(ctx context.Context, served string) {
	n, err := c.repository.Count()
	if err == nil && n <= 2*revisionsKept {
		return
	}
	var done repo.Collected
	if err == nil {
		done, err = c.repository.Collect(ctx, c.retention(revisionsKept, served))
	}
	if err != nil {
		c.log.Warn("old revisions of the repository could not be removed", "error", err)
		return
	}
	c.log.Info("old revisions of the repository were removed", "revisions", len(done.Revisions), "files", done.Files, "bytes", done.Bytes)
	c.forget(done.Models)
}

// forget forgets what was learnt of models that neither a revision has that can be gone back to, by whose names they are given, nor what is planned for.
func (c *Control) forget(kept []string) {
	c.mu.Lock()
	if c.files != nil {
		for _, m := range c.files.Models {
			kept = append(kept, m.Name)
		}
	}
	c.mu.Unlock()
	if err := observe.Prune(c.store, kept); err != nil {
		c.log.Warn("what was learnt of models that are gone could not be removed", "error", err)
	}
}

// Collect removes old revisions by an operator's order. It waits for a plan that is
// being made, which may need one of them.
func (c *Control) Collect(ctx context.Context, r api.CollectRequest) (repo.Collected, error) {
	if r.Keep < 0 {
		return repo.Collected{}, fmt.Errorf("%w: %d revisions to keep", ErrRefused, r.Keep)
	}
	if err := c.ready(ctx); err != nil {
		return repo.Collected{}, err
	}
	defer c.release()
	what := c.retention(cmp.Or(r.Keep, revisionsKept), "")
	what.DryRun = r.DryRun
	done, err := c.repository.Collect(ctx, what)
	if err != nil {
		return repo.Collected{}, err
	}
	if !r.DryRun {
		c.forget(done.Models)
	}
	if !r.DryRun && (len(done.Revisions) > 0 || done.Files > 0) {
		c.event(api.Event{Kind: events.Repository, Author: cmp.Or(r.Author, "operator"), Reason: r.Reason,
			Message: fmt.Sprintf("%s of the repository were removed, with %s", count(len(done.Revisions), "revision"), count(done.Files, "file"))})
	}
	return done, nil
}

// Verify compares the content of every revision with its digest.
func (c *Control) Verify(ctx context.Context, r api.VerifyRequest) (repo.Verification, error) {
	found, err := c.repository.Verify(ctx, r.Mend)
	if err != nil {
		return repo.Verification{}, err
	}
	var names []string
	for _, d := range found.Damaged {
		if name := d.Model + " of " + d.Revision; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		message := "content of the repository is damaged: " + strings.Join(names[:min(len(names), 5)], ", ")
		if len(names) > 5 {
			message += fmt.Sprintf(" and %d more", len(names)-5)
		}
		c.event(api.Event{Kind: events.Repository, Author: cmp.Or(r.Author, "operator"), Reason: r.Reason, Message: message})
	}
	return found, nil
}
