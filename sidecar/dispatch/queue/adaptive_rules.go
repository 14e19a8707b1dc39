// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"slices"
	"strings"
)

// rules is a set of adaptive's rules.
type rules uint16

// The rules that can be taken away from adaptive, so that what each brings can be
// measured; README.md has them by these names.
const (
	// Hurry: when a candidate starts before its exec.
	ruleStagger rules = 1 << iota // 1/2 - the mean share that partitions have left
	ruleLight                     // at once where the model keeps few partitions busy
	ruleWorth                     // at once where the batch runs nearly as efficiently as the largest
	ruleCrowd                     // earlier among models that do not wait
	ruleHaste                     // earlier after a long burst
	ruleQuiet                     // not before the burst is over
	ruleScarce                    // which takes longer to tell where partitions are few
	// Most: how many rows a batch has at most.
	ruleSize  // fewer than fit, at all
	ruleMany  // split less where one of many partitions is soon free
	ruleBurst // split no further than a burst can be served
	ruleBrief // what others cannot wait for takes .8 T
	ruleSurge // or is split where four such bursts can be served
)

// AdaptiveRules lists the rules of the discipline adaptive that its parameter
// `without` can take away, as README.md describes them.
func AdaptiveRules() []string { // in the order of the constants
	return []string{"stagger", "light", "worth", "crowd", "haste", "quiet", "scarce", "size", "many", "burst", "brief", "surge"}
}

// has reports whether the set has a rule.
func (r rules) has(one rules) bool { return r&one != 0 }

// rulesOf reads a list such as "quiet,brief". Nothing is the empty set.
func rulesOf(list string) (set rules, err error) {
	if list == "" {
		return 0, nil
	}
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		i := slices.Index(AdaptiveRules(), name)
		switch {
		case i < 0:
			return 0, fmt.Errorf("parameter without=%q: rule %q: %w; there are %s", list, name, ErrUnknown, strings.Join(AdaptiveRules(), ", "))
		case set.has(1 << i):
			return 0, fmt.Errorf("parameter without=%q has rule %q twice; name it once", list, name)
		}
		set |= 1 << i
	}
	return set, nil
}
