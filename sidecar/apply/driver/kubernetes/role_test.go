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

// The role in the documentation allows what conch asks for at its start, with the lease, and nothing else.
func TestTheRoleOfThePage(t *testing.T) {
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
	var has []may
	for document := range strings.SplitSeq(role.String(), "---\n") {
		var r rbac.Role // a ClusterRole has the same rules
		require.NoError(t, yaml.UnmarshalStrict([]byte(document), &r))
		for _, rule := range r.Rules {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					has = append(has, may{verb, rule.APIGroups[0], resource, r.Kind == "Role"})
				}
			}
		}
	}
	wants := append(needs(true, true), toLead()...)
	sorted := func(all []may) []may {
		slices.SortFunc(all, func(a, b may) int {
			return strings.Compare(a.group+"/"+a.resource+" "+a.verb, b.group+"/"+b.resource+" "+b.verb)
		})
		return all
	}
	require.Equal(t, sorted(wants), sorted(has))
}
