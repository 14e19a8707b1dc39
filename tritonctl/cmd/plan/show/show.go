// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package show is `tritonctl plan show`.
package show

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// Options are the command's inputs.
type Options struct {
	*factory.Factory
}

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	o := &Options{Factory: f}
	c := &cobra.Command{
		Use:   "show",
		Short: "Show the plan that serves",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, args []string) error {
			return o.run(c.Context())
		},
	}
	return c
}

func (o *Options) run(ctx context.Context) error {
	api, err := o.Client()
	if err != nil {
		return err
	}
	shown, err := api.Plan(ctx)
	if err != nil {
		return err
	}
	var p policy.Plan
	if err := protojson.Unmarshal(shown.Plan, &p); err != nil {
		return fmt.Errorf("plan of revision %d: %w", shown.Revision, err)
	}
	return o.Print(shown, func(t *output.Table) {
		t.Line(fmt.Sprintf("plan %d by policy %s, applied %s by %s", shown.Revision, shown.Policy, shown.AppliedAt.Format(time.RFC3339), shown.AppliedBy))
		t.Row("PARTITION", "GPU", "SHARE", "MEMORY", "RANK", "SERVES")
		for _, q := range p.GetPartitions() {
			t.Row(q.GetId(), q.GetGpu(), fmt.Sprintf("%d%%", q.GetThreadPercentage()), output.Bytes(q.GetMemoryLimitBytes()), q.GetRank(), serves(q))
		}
		for _, u := range p.GetUnplaced() {
			t.Line("not placed: " + u.GetModel() + ": " + u.GetText())
		}
	})
}

func serves(q *policy.Partition) string {
	var names []string
	for _, i := range q.GetInstances() {
		names = append(names, i.GetModel()+i.GetMergeGroup()+i.GetSegment())
	}
	return strings.Join(names, ",")
}
