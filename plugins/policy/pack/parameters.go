// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/conch-serving/conch/plugins/policy"
)

// Parameters are a policy's parameters in a snapshot, with defaults, as numbers and lists that are within their bounds. Err has the first that is
// not, and is to be asked once all are read.
type Parameters struct {
	policy string
	all    map[string]string
	err    error
}

// Read reads the parameters of a snapshot for a policy, by its description. An error is of a name that the policy does not have, or a text that is
// not of its parameter's type.
func Read(of policy.Policy, s *policy.Snapshot) (*Parameters, error) {
	d, err := of.Describe(context.Background())
	if err != nil {
		return nil, err
	}
	all, err := d.Resolve(s.GetParameters())
	if err != nil {
		return nil, err
	}
	return &Parameters{policy: d.GetName(), all: all}, nil
}

// Err is what is wrong with a parameter; nil if nothing is.
func (p *Parameters) Err() error { return p.err }

// refuse notes what a parameter is not, if it is the first.
func (p *Parameters) refuse(name, want string) {
	if p.err == nil {
		p.err = fmt.Errorf("%s: parameter %s: %q is not %s", p.policy, name, p.all[name], want)
	}
}

// Text is a parameter as it is.
func (p *Parameters) Text(name string) string { return p.all[name] }

// Bool is one of policy.TypeBool.
func (p *Parameters) Bool(name string) bool {
	yes, _ := strconv.ParseBool(p.all[name]) // Read has seen that the texts are of their types
	return yes
}

// Float is one of policy.TypeFloat that is within bounds, which want describes.
func (p *Parameters) Float(name string, within func(float64) bool, want string) float64 {
	f, _ := strconv.ParseFloat(p.all[name], 64)
	if !within(f) {
		p.refuse(name, want)
	}
	return f
}

// Int is one of policy.TypeInt that is within bounds, which want describes.
func (p *Parameters) Int(name string, within func(int) bool, want string) int {
	n, err := strconv.Atoi(p.all[name])
	if err != nil || !within(n) {
		p.refuse(name, want)
	}
	return n
}

// Ascending is a list of numbers with commas between them, each above the one before and at most limit, which want describes.
func (p *Parameters) Ascending(name string, limit uint32, want string) (all []uint32) {
	last := uint32(0)
	for text := range strings.SplitSeq(p.all[name], ",") {
		n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 32)
		if err != nil || uint32(n) <= last || uint32(n) > limit {
			p.refuse(name, want)
		}
		last = uint32(n)
		all = append(all, last)
	}
	return all
}

// AtLeast is a bound of numbers.
func AtLeast[N int | float64](least N) func(N) bool { return func(n N) bool { return n >= least } }

// Between is a bound of numbers, both ends included.
func Between[N int | float64](least, most N) func(N) bool {
	return func(n N) bool { return n >= least && n <= most }
}
