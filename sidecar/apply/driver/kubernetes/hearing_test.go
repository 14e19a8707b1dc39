// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNodesThatAreNotHeardOf: after an outage of the API server nodes are not ready until their kubelets are heard of, one after the other, and were found so one after the
// other. None of them is taken away from plans for it. A node that is not ready by itself is, once that lasts.
func TestNodesThatAreNotHeardOf(t *testing.T) {
	o := provisioned(t)
	for name, steps := range map[string][]struct {
		after time.Duration
		ready string // the nodes that are, of n1, n2 and n3, and whether the API server is silent, or a server answers on n1 or n2
		want  string // those that plans may use
	}{
		"one is lost":                                    {{0, "123", "123"}, {time.Hour, "12", "123"}, {4 * time.Second, "12", "123"}, {time.Second, "12", "12"}, {time.Hour, "123", "123"}},
		"one is not ready for a moment":                  {{0, "123", "123"}, {time.Second, "12", "123"}, {3 * time.Second, "123", "123"}, {time.Second, "12", "123"}},
		"one is lost before the first look":              {{0, "12", "12"}},
		"all are before the first look":                  {{0, "", "123"}, {170 * time.Second, "", "123"}, {time.Second, "12", "123"}, {2 * time.Minute, "12", "12"}},
		"all are lost":                                   {{0, "123", "123"}, {time.Second, "", "123"}, {170 * time.Second, "", "123"}, {20 * time.Second, "", "123"}, {2 * time.Minute, "", ""}, {time.Second, "1", "1"}, {time.Hour, "123", "123"}},
		"all are lost, and the API server was silent":    {{0, "123", "123"}, {time.Second, "silent", "123"}, {time.Hour, "silent", "123"}, {170 * time.Second, "", "123"}, {115 * time.Second, "", "123"}, {6 * time.Second, "", ""}},
		"all are lost long after an outage":              {{0, "123", "123"}, {time.Second, "123 silent", "123"}, {time.Hour, "123", "123"}, {time.Second, "", "123"}, {170 * time.Second, "", "123"}, {10 * time.Second, "12", "123"}, {2 * time.Minute, "12", "12"}},
		"none is heard of, and servers answer":           {{0, "123", "123"}, {time.Second, "on 12", "123"}, {170 * time.Second, "on 12", "123"}, {2 * time.Minute, "on 12", "12"}, {time.Hour, "on 12", "12"}, {time.Second, "on 1", "1"}, {time.Second, "1", "1"}},
		"none is heard of, and then one after the other": {{0, "123", "123"}, {time.Second, "on 12", "123"}, {time.Hour, "on 12", "12"}, {time.Second, "3", "123"}, {time.Minute, "23", "123"}, {time.Minute, "23", "23"}},
		"an outage":                        {{0, "123", "123"}, {time.Second, "1", "123"}, {time.Second, "", "123"}, {170 * time.Second, "", "123"}, {time.Second, "2", "123"}, {30 * time.Second, "12", "123"}, {20 * time.Second, "123", "123"}},
		"one does not come back":           {{0, "123", "123"}, {time.Second, "", "123"}, {time.Second, "12", "123"}, {time.Minute, "12", "123"}, {time.Minute, "12", "12"}},
		"one comes back and is lost again": {{0, "123", "123"}, {time.Second, "", "123"}, {time.Second, "123", "123"}, {time.Second, "12", "123"}, {5 * time.Second, "12", "123"}, {2 * time.Minute, "12", "12"}},
		"an outage, after which one is not heard of in time": {{0, "123", "123"}, {time.Hour, "123 silent", "123"}, {10 * time.Second, "12", "123"}, {100 * time.Second, "12", "123"}, {9 * time.Second, "123", "123"}, {time.Hour, "12", "123"}, {5 * time.Second, "12", "12"}},
		"one was lost, and then there are none":              {{0, "123", "123"}, {time.Second, "12", "123"}, {time.Minute, "12", "12"}, {time.Second, "", "12"}, {time.Second, "12", "12"}, {time.Hour, "12", "12"}},
		"one was lost, and then there is an outage":          {{0, "123", "123"}, {time.Second, "12", "123"}, {time.Minute, "12", "12"}, {time.Hour, "12 silent", "12"}, {time.Second, "1", "12"}, {time.Minute, "123", "123"}},
	} {
		t.Run(name, func(t *testing.T) {
			var h hearing
			now, silent := time.Unix(1_000_000, 0), time.Time{}
			for i, step := range steps {
				if now = now.Add(step.after); strings.HasSuffix(step.ready, "silent") {
					silent = now
				}
				isUp, serving, _ := strings.Cut(step.ready, "on ")
				bare := ready("", nil) // has no GPUs: that it is ready says nothing of the others
				bare.Name = "n4"
				all := []*core.Node{bare}
				for _, number := range []string{"1", "2", "3"} {
					n := ready("1", nil)
					if n.Name = "n" + number; !strings.Contains(isUp, number) {
						n.Status.Conditions[0].Status = core.ConditionUnknown
					}
					all = append(all, n)
				}
				w := world{nodes: all}
				nodes, _ := o.read(w, h.excused(o.withGPUs(w), heard{now, silent, func(node string) bool { return strings.Contains(serving, strings.TrimPrefix(node, "n")) }}))
				got := ""
				for _, n := range nodes {
					if reason := n.GetGpus()[0].GetUnavailableReason(); reason == "" {
						got += strings.TrimPrefix(n.GetName(), "n")
					} else {
						require.Equal(t, notReady, reason)
					}
				}
				require.Equal(t, step.want, got, "step %d", i)
			}
		})
	}
}

// TestNodesBeforeTheFirstLook: a conch that starts goes by what nodes say of the time before. Where none was ready at one moment of late, those that are not yet are waited for.
func TestNodesBeforeTheFirstLook(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	for name, c := range map[string]struct {
		ready, not []time.Duration // for how long nodes are ready, and are not
		excused    int
	}{
		"one is lost for long, another by itself":         {[]time.Duration{time.Hour}, []time.Duration{time.Hour, 10 * time.Second}, 0},
		"one is not ready for a moment":                   {[]time.Duration{time.Hour}, []time.Duration{time.Second, time.Minute}, 1},
		"all are ready":                                   {[]time.Duration{time.Hour, time.Second}, nil, 0},
		"none was ready, and one is again":                {[]time.Duration{time.Minute}, []time.Duration{2 * time.Minute, 3 * time.Hour}, 2},
		"none was ready, and two are again":               {[]time.Duration{time.Second, 119 * time.Second}, []time.Duration{2 * time.Minute}, 1},
		"none was ready, long ago":                        {[]time.Duration{2 * time.Minute}, []time.Duration{time.Hour}, 0},
		"one was ready all the time":                      {[]time.Duration{time.Minute, time.Hour}, []time.Duration{2 * time.Minute}, 0},
		"the cluster's clock is before this machine's":    {[]time.Duration{-time.Minute}, []time.Duration{time.Minute}, 1},
		"none is ready, which may be the control plane's": {nil, []time.Duration{time.Hour, time.Hour}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var all []*core.Node
			add := func(status core.ConditionStatus, since time.Duration) {
				n := ready("1", nil)
				n.Name = fmt.Sprint(len(all))
				n.Status.Conditions[0].Status, n.Status.Conditions[0].LastTransitionTime = status, meta.NewTime(now.Add(-since))
				all = append(all, n)
			}
			for _, since := range c.ready {
				add(core.ConditionTrue, since)
			}
			for _, since := range c.not {
				add(core.ConditionUnknown, since)
			}
			var h hearing
			require.Len(t, h.excused(all, heard{now: now, serves: func(string) bool { return false }}), c.excused)
		})
	}
}
