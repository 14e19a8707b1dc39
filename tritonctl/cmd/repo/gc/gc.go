// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package gc is `tritonctl repo gc`.
package gc

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	var r api.CollectRequest
	c := &cobra.Command{
		Use:   "gc",
		Short: "Forget old revisions and remove the content that they alone have",
		Long: `gc forgets the revisions that are not among the newest ones, and removes what no other
revision has. It keeps the revisions that serve, that are planned for, and whose models
may still be loaded, with all that is in them, the parts of merge groups too. Conch does
the same by itself once there are more than 100 revisions. What was removed cannot be
gone back to: --dry-run says beforehand what that is, and what it frees. It waits for a
plan that is being made.`,
		Example: `tritonctl repo gc --dry-run
tritonctl repo gc --keep 5 --reason 'the disk is full'`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			r.Author = f.Author
			if r.Keep < 1 {
				return fmt.Errorf("%w: --keep %d: at least the newest revision is kept", factory.ErrUsage, r.Keep)
			}
			return factory.Show(c.Context(), f, func(conch *client.Client, ctx context.Context) (api.Collected, error) {
				return conch.Collect(ctx, r)
			}, draw)
		},
	}
	c.Flags().IntVar(&r.Keep, "keep", 50, "how many of the newest revisions to keep")
	c.Flags().BoolVar(&r.DryRun, "dry-run", false, "say what would be removed, and remove nothing")
	c.Flags().StringVar(&r.Reason, "reason", "", "why, for the events")
	return c
}

func draw(t *output.Table, done api.Collected) {
	for _, k := range done.Kept {
		if !strings.HasPrefix(k.For, "one of the newest") {
			t.Line(fmt.Sprintf("%s is kept: %s", k.Revision, k.For))
		}
	}
	verb := "removed"
	if done.DryRun {
		verb = "would be removed"
	}
	list := ""
	if len(done.Revisions) > 0 {
		list = " (" + strings.Join(done.Revisions, ", ") + ")"
	}
	freed := output.Bytes(uint64(max(done.Bytes, 0)))
	if freed == "" {
		freed = "nothing"
	}
	t.Line(fmt.Sprintf("%d revisions%s and %d files %s, %d are kept; that frees %s", len(done.Revisions), list, done.Files, verb, len(done.Kept), freed))
}
