// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package get

import (
	"fmt"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/tritonctl/output"
)

// drawPolicy shows the queue policy of a model that Conch's queue keeps.
func drawPolicy(t *output.Table, p *api.QueuePolicy) {
	if p == nil {
		return
	}
	if p.PriorityLevels == 0 {
		t.Row("queue policy", rule(p.Default))
		return
	}
	t.Row("queue policy", fmt.Sprintf("%d priority levels, %d by default", p.PriorityLevels, p.DefaultPriorityLevel))
	for _, r := range p.Levels {
		t.Row(fmt.Sprintf("  level %d", r.Level), rule(r))
	}
	if uint64(len(p.Levels)) < p.PriorityLevels {
		t.Row("  other levels", rule(p.Default))
	}
}

// rule is how requests wait, in words.
func rule(r api.QueueRule) string {
	text := "any number may wait"
	if r.MaxQueueSize > 0 {
		text = fmt.Sprintf("%d may wait", r.MaxQueueSize)
	}
	if r.TimeoutSeconds == 0 {
		return text + ", as long as it takes"
	}
	text += " for " + output.Milliseconds(r.TimeoutSeconds)
	if r.AllowTimeoutOverride {
		text += " or their own timeout, if that is shorter"
	}
	if r.TimeoutAction == "delay" {
		return text + ", and behind the others after that"
	}
	return text + ", and are refused after that"
}
