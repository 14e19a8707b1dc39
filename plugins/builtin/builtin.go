// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package builtin lists the policies that come with Conch. The executable
// conch-policies serves them, and the simulator runs them in its own process.
package builtin

import (
	"maps"
	"slices"

	"github.com/conch-serving/conch/plugins/alpaserve"
	"github.com/conch-serving/conch/plugins/conch"
	"github.com/conch-serving/conch/plugins/gpulet"
	"github.com/conch-serving/conch/plugins/infaas"
	"github.com/conch-serving/conch/plugins/nexus"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/shepherd"
	"github.com/conch-serving/conch/plugins/static"
	"github.com/conch-serving/conch/plugins/symphony"
	"github.com/conch-serving/conch/plugins/usher"
)

// Names of the built-in policies, sorted.
func Names() []string { return slices.Sorted(maps.Keys(constructors())) }

// New makes the named policy; false where there is none of that name.
func New(name string) (policy.Policy, bool) {
	construct, ok := constructors()[name]
	if !ok {
		return nil, false
	}
	return construct(), true
}

func constructors() map[string]func() policy.Policy {
	return map[string]func() policy.Policy{
		alpaserve.Name: func() policy.Policy { return alpaserve.New() },
		conch.Name: func() policy.Policy {
			return conch.New(static.New(), nexus.New(), gpulet.New(), shepherd.New(), symphony.New(), usher.New())
		},
		gpulet.Name:   func() policy.Policy { return gpulet.New() },
		infaas.Name:   func() policy.Policy { return infaas.New() },
		nexus.Name:    func() policy.Policy { return nexus.New() },
		shepherd.Name: func() policy.Policy { return shepherd.New() },
		static.Name:   func() policy.Policy { return static.New() },
		symphony.Name: func() policy.Policy { return symphony.New() },
		usher.Name:    func() policy.Policy { return usher.New() },
	}
}
