// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
)

// TestNodesThatAreNotHeardOf: after an outage of the API server nodes are not ready until their kubelets are heard of, one after the other, and were found so one after the
// other. None of them is taken away from plans for it. A node that is not ready by itself is, once that lasts.
func TestNodesThatAreNotHeardOf(t *testing.T) {
	o := provisioned(t)
	for name, steps := range map[string][]struct {
		after time.Duration
		ready string // the nodes that are, of n1, n2 and n3, and whether the API server is silent
		want  string // those that plans may use
	}{
		"one is lost":                                        {{0, "123", "123"}, {time.Hour, "12", "123"}, {4 * time.Second, "12", "123"}, {time.Second, "12", "12"}, {time.Hour, "123", "123"}},
		"one is not ready for a moment":                      {{0, "123", "123"}, {time.Second, "12", "123"}, {3 * time.Second, "123", "123"}, {time.Second, "12", "123"}},
		"one is lost before the first look":                  {{0, "12", "12"}},
		"all are before the first look":                      {{0, "", "123"}, {time.Hour, "", "123"}},
		"an outage":                                          {{0, "123", "123"}, {time.Second, "1", "123"}, {time.Second, "", "123"}, {time.Hour, "", "123"}, {time.Second, "2", "123"}, {30 * time.Second, "12", "123"}, {20 * time.Second, "123", "123"}},
		"one does not come back":                             {{0, "123", "123"}, {time.Second, "", "123"}, {time.Second, "12", "123"}, {time.Minute, "12", "123"}, {time.Minute, "12", "12"}},
		"one comes back and is lost again":                   {{0, "123", "123"}, {time.Second, "", "123"}, {time.Second, "123", "123"}, {time.Second, "12", "123"}, {5 * time.Second, "12", "123"}, {2 * time.Minute, "12", "12"}},
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
				bare := ready("", nil) // has no GPUs: that it is ready says nothing of the others
				bare.Name = "n4"
				all := []*core.Node{bare}
				for _, number := range []string{"1", "2", "3"} {
					n := ready("1", nil)
					if n.Name = "n" + number; !strings.Contains(step.ready, number) {
						n.Status.Conditions[0].Status = core.ConditionUnknown
					}
					all = append(all, n)
				}
				w := world{nodes: all}
				nodes, _ := o.read(w, h.excused(o.withGPUs(w), now, silent))
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
