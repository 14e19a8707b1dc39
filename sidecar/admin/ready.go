// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/apply/decide"
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
			reason = fmt.Sprintf("%s: %s", p.ID, cmp.Or(p.Reason, "its server does not answer yet"))
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
	return []api.Check{plan, partitions, serving, models(r)}
}

// models is the check that a model can be served. It does not hold while every one that is to serve fails or has no place: another replica, or the
// version before this one, may do better. One that fails beside others does not take them out of service, and is a reason all the same. While models
// are loaded, or loaded again, their requests wait here, so that clients need not go elsewhere.
func models(r control.Readiness) api.Check {
	check := api.Check{Name: "models", OK: true}
	wanted, serves, failing := map[string]bool{}, map[string]bool{}, map[string]string{}
	for _, s := range r.Servers {
		for _, model := range s.Models {
			wanted[model], serves[model] = true, true
		}
		for _, model := range s.Missing {
			wanted[model] = true
		}
	}
	for _, condition := range r.Awaited {
		if m := condition.Model; m != "" && condition.Kind == decide.IsFailing && wanted[m] && !serves[m] {
			failing[m] = condition.Reason
		}
	}
	for model, why := range r.Without {
		wanted[model], failing[model] = true, why
	}
	if len(failing) == 0 {
		return check
	}
	check.OK = len(failing) < len(wanted)
	var words []string
	for _, model := range slices.Sorted(maps.Keys(failing)) {
		if len(words) == mostAwaited {
			words = append(words, fmt.Sprintf("and %d more", len(failing)-mostAwaited))
			break
		}
		words = append(words, model+": "+failing[model])
	}
	check.Reason = fmt.Sprintf("%d of %d models serve nowhere: %s", len(failing), len(wanted), strings.Join(words, "; "))
	return check
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
