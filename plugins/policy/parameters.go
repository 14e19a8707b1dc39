// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Types of a [Parameter].
const (
	TypeString   = "string"
	TypeInt      = "int"
	TypeFloat    = "float"
	TypeBool     = "bool"
	TypeDuration = "duration"
)

// Resolve puts the given parameters over the defaults of the description. It
// fails on a name that the policy does not have and on a value that is not of
// the parameter's type or not among its values.
func (d *Description) Resolve(given map[string]string) (map[string]string, error) {
	resolved := make(map[string]string, len(d.GetParameters()))
	known := make(map[string]*Parameter, len(d.GetParameters()))
	for _, p := range d.GetParameters() {
		resolved[p.GetName()] = p.GetDefaultValue()
		known[p.GetName()] = p
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		p, ok := known[name]
		if !ok {
			return nil, fmt.Errorf("policy %s has no parameter %q; it has: %s",
				d.GetName(), name, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
		if err := p.check(given[name]); err != nil {
			return nil, fmt.Errorf("policy %s, parameter %s: %w", d.GetName(), name, err)
		}
		resolved[name] = given[name]
	}
	return resolved, nil
}

func (p *Parameter) check(value string) error {
	if values := p.GetValues(); len(values) > 0 && value != "" && !slices.Contains(values, value) {
		return fmt.Errorf("%q is none of its values; there are: %s", value, strings.Join(values, ", "))
	}
	var err error
	switch p.GetType() {
	case TypeInt:
		_, err = strconv.ParseInt(value, 10, 64)
	case TypeFloat:
		_, err = strconv.ParseFloat(value, 64)
	case TypeBool:
		_, err = strconv.ParseBool(value)
	case TypeDuration:
		_, err = time.ParseDuration(value)
	}
	if err != nil {
		return fmt.Errorf("%q is not a value of type %s", value, p.GetType())
	}
	return nil
}
