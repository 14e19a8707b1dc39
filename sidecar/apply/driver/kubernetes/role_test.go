// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	rbac "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// The role in the documentation, and that of the chart, allow what conch asks for at its start, with the lease, logs, and nothing else.
func TestTheRoleIsWhatConchAsksFor(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/kubernetes.md")
	require.NoError(t, err)
	_, text, found := strings.Cut(string(page), "\n## The role\n\n")
	require.True(t, found)
	var role strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "    ") {
			break
		}
		role.WriteString(strings.TrimPrefix(line, "    "))
	}
	chart, err := os.ReadFile("../../../../e2e/deploy/testdata/chart-cluster.golden.yaml")
	require.NoError(t, err)
	sorted := func(all []may) []may {
		slices.SortFunc(all, func(a, b may) int {
			return strings.Compare(a.group+"/"+a.resource+" "+a.verb, b.group+"/"+b.resource+" "+b.verb)
		})
		return all
	}
	for _, text := range []string{role.String(), string(chart)} {
		var has []may
		for document := range strings.SplitSeq(text, "---\n") {
			var r rbac.Role // a ClusterRole has the same rules
			require.NoError(t, yaml.Unmarshal([]byte(document), &r))
			if r.Kind != "Role" && r.Kind != "ClusterRole" {
				continue
			}
			require.NoError(t, yaml.UnmarshalStrict([]byte(document), &r))
			for _, rule := range r.Rules {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						has = append(has, may{verb, rule.APIGroups[0], resource, r.Kind == "Role"})
					}
				}
			}
		}
		readsLogs := []may{{"get", "", "pods/log", true}}
		require.Equal(t, sorted(slices.Concat(needs(true), toLead(), toFollow(), toFollowState(), readsLogs)), sorted(has))
	}
}
