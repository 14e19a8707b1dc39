// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/conch-serving/conch/internal/zoo"
	"github.com/conch-serving/conch/sidecar/sim/bound"
)

// ablationLoads names, for each rule of adaptive, loads on which it matters most, and last one where it costs something, or brings nothing. They
// were chosen so, by short runs of the matrix's loads without the rule at about the goodput of adaptive, on other seeds: what a rule brings on
// them is not what it brings on average.
func ablationLoads() map[string][]string {
	return map[string][]string{
		"stagger": {
			"inception1.poisson.equal.tight.gpus8",
			"equal4.poisson.equal.tight.gpus6",
			"equal8.poisson.equal.tight.gpus12",
			"equal1.poisson.equal.tight.gpus2",
			"equal2.poisson.equal.loose.gpus4",
			"equal2.poisson.equal.tight.gpus64",
		},
		"light": {
			"equal2.poisson.zipf.loose.gpus2",
			"gtx1080ti.poisson.zipf.loose.gpus8",
			"weak.poisson.zipf.loose.gpus16",
			"weak.poisson.equal.loose.gpus16",
			"equal8.poisson.equal.tight.gpus8",
			"strong.poisson.zipf.loose.gpus16",
		},
		"worth": {
			"equal8.gamma30.equal.tight.gpus16",
			"equal4.poisson.equal.tight.gpus6",
			"equal8.poisson.equal.tight.gpus12",
			"equal20.gamma30.zipf.tight.gpus64",
			"equal2.gamma30.equal.tight.gpus4",
			"a100.poisson.equal.tight.gpus64",
		},
		"crowd": {
			"a100.poisson.zipf.tight.gpus64",
			"a100.gamma30.zipf.tight.gpus64",
			"equal20.gamma30.zipf.loose.gpus8",
			"strong.gamma30.equal.loose.gpus16",
			"equal8.poisson.zipf.loose.gpus8",
			"a100.poisson.zipf.tight.gpus16",
		},
		"haste": {
			"equal20.gamma05.zipf.tight.gpus64",
			"equal20.gamma05.zipf.loose.gpus64",
			"equal8.gamma05.equal.loose.gpus16",
			"equal8.gamma05.zipf.tight.gpus64",
			"equal2.gamma05.equal.loose.gpus8",
			"strong.gamma05.equal.tight.gpus16",
		},
		"quiet": {
			"equal1.gamma05.equal.tight.gpus2",
			"gtx1080ti.gamma05.zipf.tight.gpus4",
			"a100.gamma05.zipf.tight.gpus4",
			"equal2.gamma05.equal.tight.gpus4",
			"equal1.gamma05.equal.tight.gpus16",
			"gtx1080ti.gamma05.zipf.tight.gpus16",
		},
		"scarce": {
			"a100.gamma30.zipf.tight.gpus2",
			"gtx1080ti.gamma30.equal.tight.gpus2",
			"strong.gamma30.zipf.tight.gpus2",
			"strong.gamma30.zipf.tight.gpus4",
			"equal20.gamma30.zipf.tight.gpus4",
			"equal1.gamma30.equal.loose.gpus4",
		},
		"size": {
			"weak.gamma05.zipf.loose.gpus4",
			"weak.gamma05.zipf.loose.gpus8",
			"weak.gamma05.zipf.loose.gpus16",
			"weak.gamma05.zipf.tight.gpus8",
			"a100.gamma05.equal.loose.gpus64",
			"gtx1080ti.poisson.equal.loose.gpus8",
		},
		"many": {
			"weak.gamma05.equal.tight.gpus64",
			"gtx1080ti.gamma05.equal.loose.gpus64",
			"weak.gamma05.equal.loose.gpus16",
			"equal8.gamma05.equal.loose.gpus64",
			"a100.gamma30.equal.tight.gpus64",
			"weak.poisson.zipf.loose.gpus64",
		},
		"burst": {
			"weak.gamma05.zipf.tight.gpus2",
			"a100.gamma05.equal.tight.gpus2",
			"gtx1080ti.gamma05.equal.tight.gpus2",
			"weak.gamma05.equal.tight.gpus4",
			"gtx1080ti.gamma05.equal.loose.gpus2",
		},
		"brief": {
			"weak.gamma30.zipf.loose.gpus2",
			"a100.gamma05.equal.loose.gpus4",
			"a100.gamma05.zipf.loose.gpus4",
			"a100.gamma05.equal.tight.gpus8",
			"weak.poisson.equal.tight.gpus2",
			"gtx1080ti.gamma05.equal.tight.gpus4",
		},
		"surge": {
			"weak.poisson.zipf.loose.gpus16",
			"weak.gamma30.equal.tight.gpus16",
			"a100.gamma05.equal.loose.gpus64",
			"gtx1080ti.gamma30.equal.loose.gpus64",
			"gtx1080ti.gamma05.equal.loose.gpus64",
			"a100.poisson.equal.loose.gpus16",
		},
		"reserve.window": {
			"equal1.poisson.equal.loose.gpus4",
			"equal1.gamma05.equal.tight.gpus16",
			"equal2.gamma05.equal.loose.gpus64",
			"weak.poisson.zipf.loose.gpus64",
			"equal8.poisson.equal.tight.gpus16",
			"strong.gamma05.equal.tight.gpus16",
		},
		"reserve.prefix": {
			"strong.poisson.equal.tight.gpus64",
			"equal1.poisson.equal.tight.gpus16",
			"equal8.poisson.equal.tight.gpus8",
			"strong.poisson.zipf.loose.gpus16",
			"equal2.gamma05.zipf.loose.gpus64",
			"weak.poisson.zipf.loose.gpus64",
		},
	}
}

// clusters are loads of the kind of the matrix that it does not have: partitions that models cannot divide evenly, and InceptionResNetV2.
func clusters() ([]column, error) {
	cases, err := zoo.Cases()
	if err != nil {
		return nil, err
	}
	copies := func(name string, p zoo.Profile, models, gpus int) column {
		c := column{set: set{name: fmt.Sprint(name, models)}, gpus: gpus, shape: 1, looser: 1}
		for range models {
			c.set.profiles = append(c.set.profiles, p)
		}
		c.bound = bound.Gather(c.bounds(), gpus)
		return c
	}
	resnet, inception := cases[0].Profile, cases[1].Profile
	return []column{
		copies("equal", resnet, 4, 6), copies("equal", resnet, 8, 12), copies("inception", inception, 1, 8),
	}, nil
}
