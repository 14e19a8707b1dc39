// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package apply is `tritonctl plan apply`.
package apply

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/cmd/plan/diff"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
	"github.com/conch-serving/conch/tritonctl/planfile"
)

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	var order api.ApplyRequest
	var o Options
	var file string
	c := &cobra.Command{
		Use:   "apply [-f FILE.json]",
		Short: "Apply a plan: the policy's, or the one in a file",
		Long: `apply asks the policy for a plan of what is observed now, shows what it changes, and
once that is confirmed applies exactly the plan that was shown, in the modes advise
and control. With --yes it plans and applies at once.

With -f it applies the plan in a file that tritonctl plan diff -o wrote, edited or
not. Conch validates it like any plan, and refuses it if another plan serves by now,
or if files, SLOs or GPUs that it is about changed.

What is applied so serves until the policy has a plan that is worth the change. --pin
has it stay.`,
		Example: `  tritonctl plan apply --dry-run
  tritonctl plan apply --yes --if-revision 7 --reason 'more load'
  tritonctl plan apply -f plan.json --pin --reason 'trying the large batch'`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if file != "" {
				var err error
				if order.File, err = planfile.Read(file, f.In); err != nil {
					return err
				}
			}
			return Run(c.Context(), f, order, o)
		},
	}
	c.Flags().StringVarP(&file, "file", "f", "", "apply the plan in this file (- is the standard input)")
	c.Flags().Uint64Var(&order.IfRevision, "if-revision", 0, "apply only while this plan serves (from_revision of plan diff)")
	c.Flags().BoolVar(&order.Pin, "pin", false, "have the plan stay, until tritonctl plan unpin")
	o.Flags(c)
	c.Flags().StringVar(&order.Reason, "reason", "", "why, for the event log")
	return c
}

// Options are those of every command that applies a plan.
type Options struct{ DryRun, Watch bool }

// Flags adds them to a command.
func (o *Options) Flags(c *cobra.Command) {
	c.Flags().BoolVar(&o.DryRun, "dry-run", false, "show the difference, change nothing")
	c.Flags().BoolVarP(&o.Watch, "watch", "w", false, "show events on stderr while the plan is applied")
}

// Run shows what an order changes, has it confirmed, and carries it out.
func Run(ctx context.Context, f *factory.Factory, order api.ApplyRequest, o Options) error {
	ask := func(conch *client.Client, ctx context.Context) (api.Diff, error) {
		return conch.Diff(ctx, order.DiffRequest)
	}
	if o.DryRun {
		return factory.Show(ctx, f, ask, diff.Draw)
	}
	if !f.Yes {
		if !f.InTerminal {
			return f.Confirm("applying a plan")
		}
		conch, err := f.Client()
		if err != nil {
			return err
		}
		shown, err := ask(conch, ctx)
		if err != nil {
			return err
		}
		if err := output.Print(f.Err, "table", shown, func(t *output.Table) { diff.Draw(t, shown) }); err != nil {
			return err
		}
		if len(shown.Violations) > 0 {
			return &api.Error{Code: api.CodeRefused, Message: "conch would refuse this plan; the one that serves goes on serving"}
		}
		if !shown.Empty {
			if err := f.Confirm("apply this plan"); err != nil {
				return err
			}
		}
		// What was shown is what is applied, and nothing that was planned since.
		if order.IfRevision == 0 {
			order.IfRevision = shown.FromRevision
		}
		if order.Rollback == 0 && !order.RollbackLast {
			order.File = shown.Proposed
		}
	}
	f.Begin("applying; the plan that serves keeps serving until the new one is ready")
	order.Author = f.Author
	if o.Watch {
		stop := f.Events(ctx)
		defer stop()
	}
	return factory.Show(ctx, f, func(conch *client.Client, ctx context.Context) (api.ApplyResult, error) {
		return conch.Apply(ctx, order)
	}, draw)
}

func draw(t *output.Table, r api.ApplyResult) {
	diff.Draw(t, r.Diff)
	if r.Changed {
		t.Line(fmt.Sprintf("plan %d serves, after %.1f s", r.Plan.Revision, r.Seconds))
	}
	if r.Plan.Pin != nil {
		t.Line(fmt.Sprintf("plan %d is pinned: no other takes its place until tritonctl plan unpin", r.Plan.Revision))
	}
}
