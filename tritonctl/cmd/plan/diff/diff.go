// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package diff is `tritonctl plan diff`.
package diff

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
	"github.com/conch-serving/conch/tritonctl/planfile"
)

// ErrDiffers is the failure of --exit-code.
var ErrDiffers = errors.New("the next plan differs from the one that serves")

// Options are the command's inputs.
type Options struct {
	*factory.Factory
	exitCode, watch bool
	// output is -o: a format, or the file to write the plan to.
	output string
	// from is the file of a plan to compare in place of the policy's.
	from string
	// policy is asked in place of the one in use.
	policy string
}

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	o := &Options{Factory: f}
	c := &cobra.Command{
		Use:   "diff",
		Short: "Say what applying the next plan would change",
		Long: `diff is the real plan path with apply left out: a snapshot is taken, the policy
asked, its plan validated. Nothing changes. Where the GPU has no room for the new
server beside the old one, the diff says so: requests wait meanwhile.

With -o FILE.json it also writes the plan to a file, for tritonctl plan apply -f. The
file may be edited; -f compares one with what serves.`,
		Example: `  tritonctl plan diff -o plan.json
  tritonctl plan diff -f plan.json
  tritonctl plan diff --watch`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, args []string) error {
			return o.run(c.Context())
		},
	}
	c.Flags().StringVarP(&o.output, "output", "o", "table", "output format ("+strings.Join(output.Formats(), ", ")+"), or the FILE.json to write the plan to")
	c.Flags().StringVarP(&o.from, "file", "f", "", "compare the plan in this file (- is the standard input) in place of the policy's")
	c.Flags().StringVar(&o.policy, "policy", "", "ask this policy in place of the one in use, which stays in use")
	c.Flags().BoolVar(&o.exitCode, "exit-code", false, "exit 1 when there is a difference")
	factory.WatchFlag(c, &o.watch)
	return c
}

func (o *Options) run(ctx context.Context) error {
	file := ""
	if strings.HasSuffix(o.output, ".json") && !slices.Contains(output.Formats(), o.output) {
		file = o.output
	} else {
		o.Format = o.output
	}
	if err := output.Check(o.Format); err != nil {
		return fmt.Errorf("%w: %w, or a FILE.json", factory.ErrUsage, err)
	}
	request := api.DiffRequest{Policy: o.policy}
	if o.from != "" {
		var err error
		if request.File, err = planfile.Read(o.from, o.In); err != nil {
			return err
		}
	}
	ask := func(conch *client.Client, ctx context.Context) (api.Diff, error) { return conch.Diff(ctx, request) }
	if o.watch {
		return factory.Watch(ctx, o.Factory, ask, live(), Draw)
	}
	conch, err := o.Client()
	if err != nil {
		return err
	}
	o.Begin("asking the policy for a plan")
	d, err := ask(conch, ctx)
	if err != nil {
		return err
	}
	if err := o.Print(d, func(t *output.Table) { Draw(t, d) }); err != nil {
		return err
	}
	if len(d.Violations) > 0 {
		return &api.Error{Code: api.CodeRefused, Message: "conch would refuse this plan; the one that serves goes on serving"}
	}
	if file != "" {
		if err := planfile.Write(file, d.Proposed); err != nil {
			return err
		}
		o.Note("the plan is in %s; tritonctl plan apply -f %s applies it", file, file)
	}
	if o.exitCode && !d.Empty {
		return ErrDiffers
	}
	return nil
}

// live is what the next plan depends on: the plan in force, what happened, and the models with their rates, of which small changes do not count.
func live() factory.Live[api.Diff] {
	type model struct {
		name  string
		state api.ModelState
		slo   float64
		rate  float64 // its logarithm, in steps of a tenth of the rate
	}
	return factory.Live[api.Diff]{Topics: []api.Topic{api.TopicPlan, api.TopicEvents, api.TopicModels}, Basis: func(s client.State) any {
		models := make([]model, len(s.Models))
		for i, m := range s.Models {
			models[i] = model{m.Name, m.State, m.SLOSeconds, math.Round(math.Log1p(m.Rate) / math.Log(1.1))}
		}
		return []any{s.Plan, factory.LastEvent(s, func(api.Event) bool { return true }), models}
	}}
}

// Draw shows a diff to a person.
func Draw(t *output.Table, d api.Diff) {
	if d.Empty {
		t.Line("no difference: the plan in force is what the policy wants")
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
