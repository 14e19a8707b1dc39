// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package show is `tritonctl plan show`.
package show

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	return factory.Watchable(f, &cobra.Command{
		Use:   "show",
		Short: "Show the plan that serves",
		Args:  cobra.NoArgs,
	}, func([]string) factory.Ask[api.Plan] { return (*client.Client).Plan }, func([]string) factory.Live[api.Plan] {
		return factory.Live[api.Plan]{Topics: []api.Topic{api.TopicPlan}, Answer: func(s client.State) (p api.Plan, known bool) {
			if s.Plan == nil {
				return p, false
			}
			return *s.Plan, true
		}}
	}, draw)
}

func draw(t *output.Table, shown api.Plan) {
	if shown.Revision == 0 {
		t.Line("no plan serves yet; tritonctl events says why")
		return
	}
	t.Line(fmt.Sprintf("plan %d by policy %s, applied %s by %s", shown.Revision, shown.Policy, shown.AppliedAt.Format(time.RFC3339), shown.AppliedBy))
	if pin := shown.Pin; pin != nil {
		t.Line(strings.TrimSpace(fmt.Sprintf("pinned by %s at %s %s", pin.Author, pin.Since.Format(time.RFC3339), pin.Reason)))
	}
	if held := shown.Held; held != nil {
		t.Line(fmt.Sprintf("since %s: %s", held.Since.Format(time.RFC3339), held.Message))
	}
	if c, _ := api.ConditionOf(shown.Conditions, api.ConditionDegraded); c.Holds {
		t.Line(c.Message)
	}
	var p policy.Plan
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(shown.Plan, &p); err != nil {
		t.Line("it cannot be drawn here (a newer conch?), -o json shows it: " + err.Error())
		return
	}
	t.Row("PARTITION", "GPU", "SHARE", "MEMORY", "RANK", "SERVES")
	for _, q := range p.GetPartitions() {
		t.Row(q.GetId(), q.Hosts(), fmt.Sprintf("%d%%", q.GetThreadPercentage()), output.Bytes(q.GetMemoryLimitBytes()), q.GetRank(), serves(q))
	}
	for _, u := range p.GetUnplaced() {
		t.Line("not placed: " + u.GetModel() + ": " + u.GetText())
	}
}

func serves(q *policy.Partition) string {
	names := make([]string, 0, len(q.GetInstances()))
	for _, i := range q.GetInstances() {
		names = append(names, i.GetModel())
	}
	return strings.Join(names, ",")
}
