// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/control"
)

// Ready implements API.
func (v view) Ready(context.Context) (api.Health, error) {
	h := api.Health{OK: true, Checks: Checks(v.control.Readiness())}
	for _, c := range h.Checks {
		h.OK = h.OK && c.OK
	}
	return h, nil
}

// Checks are the conditions under which clients may be sent here; all must hold. A
// policy that does not answer is none: the plan that serves needs no policy.
func Checks(r control.Readiness) []api.Check {
	plan := api.Check{Name: "plan", OK: r.Planned && r.Starting == ""}
	if !plan.OK {
		plan.Reason = r.Starting + awaited(r)
	}
	partitions := api.Check{Name: "partitions", OK: true}
	up := 0
	var reason string
	for _, p := range r.Servers {
		if p.Up {
			up++
		} else {
			reason = fmt.Sprintf("%s: %s", p.ID, p.Reason)
		}
	}
	// A repository without models is served by no partition, truthfully.
	if r.Planned && len(r.Servers) > 0 && up == 0 {
		partitions.OK, partitions.Reason = false, fmt.Sprintf("none of %d partitions is up; %s", len(r.Servers), reason)
	}
	serving := api.Check{Name: "serving", OK: !r.Draining}
	if !serving.OK {
		serving.Reason = "draining: no new request is taken"
	}
	return []api.Check{plan, partitions, serving}
}

// mostAwaited bounds what a reason lists: a probe's log is no place for 200 models.
const mostAwaited = 3

// awaited says in words what the desired state waits for, to be put behind a reason;
// empty where it waits for nothing.
func awaited(r control.Readiness) string {
	var words []string
	for i, condition := range r.Awaited {
		if i == mostAwaited {
			words = append(words, fmt.Sprintf("and %d more", len(r.Awaited)-i))
			break
		}
		subject := condition.Partition
		if condition.Model != "" {
			subject = condition.Model + " on " + condition.Partition
		}
		words = append(words, fmt.Sprintf("%s (%s for %s)", subject, condition.Reason, r.Now.Sub(condition.Since).Round(time.Second)))
	}
	if len(words) == 0 {
		return ""
	}
	return ": it waits for " + strings.Join(words, ", ")
}
