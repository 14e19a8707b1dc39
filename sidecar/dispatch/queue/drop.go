// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"strings"
)

// DropPolicy chooses which requests of a lane are given up so that the rest can
// still make it. The policies are part of this package; NewDropPolicy makes
// them.
type DropPolicy interface {
	// Name is the name that NewDropPolicy knows it by.
	Name() string
	// bounded tells that batches are kept within the deadline of their first
	// request, and that requests that cannot make it alone are given up.
	bounded() bool
	// minRows is called when a partition is granted to a lane whose waiting
	// requests begin with head: the number of rows that a batch starting now
	// should have. Requests at the front that cannot finish in a batch of that
	// size are given up.
	minRows(now Time, l *lane, head *Request, t Table, target int) int
}

func dropPolicies() []DropPolicy { return []DropPolicy{window{}, prefix{}, none{}} }

// DropPolicyNames lists the drop policies.
func DropPolicyNames() []string {
	var names []string
	for _, p := range dropPolicies() {
		names = append(names, p.Name())
	}
	return names
}

// DescribeDropPolicies documents every drop policy.
func DescribeDropPolicies() []Description {
	return []Description{
		{Name: window{}.Name(), Help: "give up requests that stand in the way of a batch of the size that the rate asks for (Symphony, Nexus)"},
		{Name: prefix{}.Name(), Help: "give up only requests that could not make it even alone"},
		{Name: none{}.Name(), Help: "give up nothing; deadlines do not limit a batch (Triton)"},
	}
}

// NewDropPolicy makes a drop policy by name.
func NewDropPolicy(name string) (DropPolicy, error) {
	for _, p := range dropPolicies() {
		if p.Name() == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("drop policy %q: %w; there are %s", name, ErrUnknown, strings.Join(DropPolicyNames(), ", "))
}
