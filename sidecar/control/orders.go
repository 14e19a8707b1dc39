// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control/events"
	"github.com/conch-serving/conch/sidecar/control/orders"
	"github.com/conch-serving/conch/sidecar/plan"
)

// Snapshot is what the policy would be asked now.
func (c *Control) Snapshot(ctx context.Context) (*policy.Snapshot, error) {
	if err := c.ready(ctx); err != nil {
		return nil, err
	}
	defer c.release()
	return c.observe(c.intent()), nil
}

// ready takes the planning turn once there is a repository to plan for.
func (c *Control) ready(ctx context.Context) error {
	if err := c.acquire(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	files, why := c.files, c.starting
	c.mu.Unlock()
	if files == nil {
		c.release()
		return fmt.Errorf("%w: conch is starting: %s", ErrUnavailable, why)
	}
	return nil
}

// Explain says why a model is where it is.
func (c *Control) Explain(ctx context.Context, model string) (*plan.Explanation, error) {
	if err := c.ready(ctx); err != nil {
		return nil, err
	}
	defer c.release()
	e, err := plan.Explain(c.observe(c.intent()), c.current().Plan.Plan, model)
	if errors.Is(err, plan.ErrUnknownModel) {
		if m, known := c.Model(model); known == nil {
			return nil, fmt.Errorf("%w: model %s has no place in a plan: %s", ErrNotFound, model, m.StateReason)
		}
		return nil, fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	if err != nil {
		return nil, err
	}
	// People know plans by the number under which they serve.
	e.Revision = c.current().Revision
	return e, nil
}

// Revisions lists the repository's revisions, newest first.
func (c *Control) Revisions(context.Context) ([]api.RepositoryRevision, error) {
	log, err := c.repository.Log(0)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	current := c.files
	c.mu.Unlock()
	all := make([]api.RepositoryRevision, len(log))
	for i, r := range log {
		all[i] = revision(r, current)
	}
	return all, nil
}

func revision(r, current *repo.Revision) api.RepositoryRevision {
	out := api.RepositoryRevision{
		Models: []string{},
		ID:     r.ID, Parent: r.Parent, Time: r.Time, Author: r.Author, Reason: r.Reason,
		Added: r.Diff.Added, Removed: r.Diff.Removed, Changed: r.Diff.ChangedModels(), Current: current != nil && current.ID == r.ID,
	}
	for _, m := range r.Models {
		out.Models = append(out.Models, m.Name)
	}
	return out
}

// Import reads a model repository into a new revision and asks for a plan of
// it. Where nothing changed, the revision that there is is returned. Where Triton
// would refuse a model that serves, the revision is kept but not served.
func (c *Control) Import(ctx context.Context, r api.ImportRequest) (api.RepositoryRevision, error) {
	if err := c.ready(ctx); err != nil {
		return api.RepositoryRevision{}, err
	}
	defer c.release()
	if err := c.notOthers(); err != nil {
		return api.RepositoryRevision{}, err
	}
	author, dir := cmp.Or(r.Author, "operator"), cmp.Or(r.Directory, c.settings().Repository)
	files, err := c.repository.Import(ctx, dir, repo.Origin{Author: author, Reason: cmp.Or(r.Reason, "import of "+dir), Time: c.clock.Now()})
	if err != nil {
		return api.RepositoryRevision{}, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if err := c.serveFiles(files, author, r.Reason); err != nil {
		return api.RepositoryRevision{}, err
	}
	return revision(files, files), nil
}

// Rollback makes a new revision of an earlier one's models and asks for a plan of
// it. It is judged like an import.
func (c *Control) Rollback(ctx context.Context, r api.RollbackRequest) (api.RepositoryRevision, error) {
	if err := c.ready(ctx); err != nil {
		return api.RepositoryRevision{}, err
	}
	defer c.release()
	if err := c.notOthers(); err != nil {
		return api.RepositoryRevision{}, err
	}
	author := cmp.Or(r.Author, "operator")
	files, err := c.repository.Rollback(ctx, r.Revision, repo.Origin{Author: author, Reason: cmp.Or(r.Reason, "rollback to "+r.Revision), Time: c.clock.Now()})
	switch {
	case errors.Is(err, repo.ErrNoRevision):
		return api.RepositoryRevision{}, fmt.Errorf("%w: the repository has no revision %q; tritonctl repo ls shows those there are", ErrNotFound, r.Revision)
	case err != nil:
		return api.RepositoryRevision{}, err
	}
	if err := c.serveFiles(files, author, r.Reason); err != nil {
		return api.RepositoryRevision{}, err
	}
	return revision(files, files), nil
}

// notOthers refuses to change a repository that conch does not serve from.
func (c *Control) notOthers() error {
	if !c.Given() {
		return nil
	}
	return fmt.Errorf("%w: which models there are is up to the servers in front of which conch stands; it serves a repository of its own there in mode control, with driver.endpoints[].repository (docs/attach.md)", ErrRefused)
}

// serveFiles makes a revision the one to plan for, unless that would spoil what
// serves.
func (c *Control) serveFiles(files *repo.Revision, author, reason string) error {
	c.mu.Lock()
	before := c.files
	c.mu.Unlock()
	if before != nil && before.ID == files.ID {
		return nil
	}
	if err := c.spoils(before, files); err != nil {
		err = fmt.Errorf("repository revision %s is not served, %s stays: %w", files.ID, before.ID, err)
		c.event(api.Event{Kind: events.Repository, Author: author, Reason: reason, Message: err.Error(), Fields: map[string]string{"revision": before.ID, "directory": files.Directory}})
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	// If the new files turn out broken, what was learnt of the old ones is wanted.
	c.learnt()
	c.adopt(files, c.settings())
	message := fmt.Sprintf("repository revision %s: %s", files.ID, changes(files.Diff))
	c.event(api.Event{Kind: events.Repository, Author: author, Reason: reason, Message: message, Fields: map[string]string{"revision": files.ID, "directory": files.Directory}})
	c.ordered(message)
	return nil
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

// Reload puts another configuration into force, all of it or nothing.
func (c *Control) Reload(ctx context.Context, next *config.Config) error {
	// The turn comes first: nothing may plan between the new policy and the new
	// settings.
	if err := c.acquire(ctx); err != nil {
		return err
	}
	defer c.release()
	before := c.settings()
	if err := config.Reloadable(before, next); err != nil {
		return err
	}
	// An operator's choice of a policy holds as long as conch.yaml says what it did.
	own := c.orders.Declared().Policy
	if own != nil && own.Over != said(next.Policy) {
		own = nil
	}
	if a, b := c.reference(before.Policy), c.reference(next.Policy); own == nil && (!samePolicy(a, b) || c.policies.Status().Name != b.Name || c.orders.Declared().Policy != nil) {
		if err := c.use(ctx, b, "conch", "reload of the configuration"); err != nil {
			return fmt.Errorf("reload refused, nothing was changed: %w", err)
		}
	}
	if err := c.orders.Declare(func(d *orders.Declared) { d.Released, d.Policy = false, own }); err != nil {
		return err
	}
	c.mu.Lock()
	c.config, c.said = next, next
	c.version.Mode = string(next.Mode)
	files := c.files
	c.mu.Unlock()
	if files != nil {
		c.adopt(files, next)
	}
	if c.attached != nil {
		c.ServersChanged("the configuration was read again")
	}
	c.event(api.Event{Kind: events.Reloaded, Message: "the configuration was read again"})
	c.ordered("the configuration was read again")
	return nil
}
