// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package conditions draws the conditions of partitions and models.
package conditions

import (
	"strings"
	"time"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/tritonctl/output"
)

// Draw adds a table of all conditions.
func Draw(t *output.Table, all []api.Condition) {
	t.Line("")
	t.Row("CONDITION", "HOLDS", "SINCE", "REASON", "MESSAGE")
	for _, c := range all {
		holds := "no"
		if c.Holds {
			holds = "yes"
		}
		message := c.Message
		if !c.RetryAt.IsZero() {
			message += "; tried again at " + c.RetryAt.Format(time.RFC3339)
		}
		t.Row(c.Type, holds, c.Since.Format(time.RFC3339), c.Reason, message)
	}
}

// Ready is the cell READY, Status the cell beside it: what is amiss or under way.
func Ready(all []api.Condition) string {
	c, known := api.ConditionOf(all, api.ConditionReady)
	switch {
	case !known:
		return ""
	case c.Holds:
		return "yes"
	}
	return "no"
}

// Status is a few words about what is amiss or under way; empty where nothing is.
func Status(all []api.Condition) string {
	for _, t := range []api.ConditionType{api.ConditionDegraded, api.ConditionProgressing} {
		if c, _ := api.ConditionOf(all, t); c.Holds {
			return strings.TrimSpace(c.Reason + ": " + c.Message)
		}
	}
	if c, known := api.ConditionOf(all, api.ConditionReady); known && !c.Holds {
		return c.Message
	}
	return ""
}
