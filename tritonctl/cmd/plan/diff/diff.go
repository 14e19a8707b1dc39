// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package diff is `tritonctl plan diff`.
package diff

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// ErrDiffers is the failure of --exit-code.
var ErrDiffers = errors.New("the next plan differs from the one that serves")

// Options are the command's inputs.
type Options struct {
	*factory.Factory
	exitCode bool
}

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	o := &Options{Factory: f}
	c := &cobra.Command{
		Use:   "diff",
		Short: "Say what applying the next plan would change",
		Long: `diff is the real plan path with apply left out: a snapshot is taken, the policy
asked, its plan validated. Nothing changes.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, args []string) error {
			return o.run(c.Context())
		},
	}
	c.Flags().BoolVar(&o.exitCode, "exit-code", false, "exit 1 when there is a difference")
	return c
}

func (o *Options) run(ctx context.Context) error {
	conch, err := o.Client()
	if err != nil {
		return err
	}
	o.Progress("asking the policy for a plan")
	d, err := conch.Diff(ctx)
	if err != nil {
		return err
	}
	if err := o.Print(d, func(t *output.Table) { Draw(t, d) }); err != nil {
		return err
	}
	if len(d.Violations) > 0 {
		return &api.Error{Code: api.CodeRefused, Message: "conch would refuse this plan; the one that serves goes on serving"}
	}
	if o.exitCode && !d.Empty {
		return ErrDiffers
	}
	return nil
}

// Draw shows a diff to a person.
func Draw(t *output.Table, d api.Diff) {
	if d.Empty {
		t.Line("no difference: the plan that serves is what the policy wants")
	} else {
		t.Line(strings.TrimRight(d.Text, "\n"))
	}
	switch d.Verdict {
	case "":
	case "apply":
		t.Line("by itself conch applies it (mode control): " + d.Judgement)
	default:
		t.Line("by itself conch holds it back (" + d.Verdict + "): " + d.Judgement)
	}
	for _, v := range d.Violations {
		t.Line("violation " + v.Code + " " + v.Subject + ": " + v.Text)
	}
}
