// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package history is `tritonctl repo history`.
package history

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	return factory.Watchable(f, &cobra.Command{
		Use:   "history",
		Short: "List the revisions of the model repository: who made them, when, why, and what changed",
		Long: `history lists the revisions of the model repository, newest first. Imports, orders of
clients and operators, merge groups and rollbacks make revisions. One is current: plans
are made for it. While a rollback holds, conch does not read the directory when it
starts; tritonctl repo import reads it again. -o wide has what was read, too.`,
		Args: cobra.NoArgs,
	}, func([]string) factory.Ask[[]api.RepositoryRevision] { return (*client.Client).Revisions }, func([]string) factory.Live[[]api.RepositoryRevision] {
		return factory.Live[[]api.RepositoryRevision]{Topics: []api.Topic{api.TopicEvents}, Basis: func(s client.State) any {
			return factory.LastEvent(s, func(api.Event) bool { return true }) // every change of the repository is an event
		}}
	}, draw)
}

func draw(t *output.Table, revisions []api.RepositoryRevision) {
	t.WideRow(7, "REVISION", "CURRENT", "TIME", "AUTHOR", "MODELS", "WHAT", "REASON", "PARENT", "DIRECTORY")
	for _, r := range revisions {
		current := ""
		switch {
		case r.Current && r.Held:
			current = "held"
		case r.Current:
			current = "*"
		}
		t.WideRow(7, r.ID, current, r.Time.Format(time.RFC3339), r.Author, len(r.Models), What(r), r.Reason, r.Parent, r.Directory)
	}
}

// What says in short what a revision changed: names where they are few.
func What(r api.RepositoryRevision) string {
	var parts []string
	if r.RollbackTo != "" {
		parts = append(parts, "rollback to "+r.RollbackTo)
	}
	for _, change := range []struct {
		mark   string
		models []string
	}{{"+", r.Added}, {"~", r.Changed}, {"-", r.Removed}, {"loaded ", r.Loaded}, {"unloaded ", r.Unloaded}} {
		switch n := len(change.models); {
		case n > 3:
			parts = append(parts, fmt.Sprintf("%s%d models", change.mark, n))
		case n > 0:
			parts = append(parts, change.mark+strings.Join(change.models, " "+change.mark))
		}
	}
	return strings.Join(parts, " ")
}
