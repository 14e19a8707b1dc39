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
// the parameter's type.
func (d *Description) Resolve(given map[string]string) (map[string]string, error) {
	resolved := make(map[string]string, len(d.GetParameters()))
	types := make(map[string]string, len(d.GetParameters()))
	for _, p := range d.GetParameters() {
		resolved[p.GetName()] = p.GetDefaultValue()
		types[p.GetName()] = p.GetType()
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		kind, ok := types[name]
		if !ok {
			return nil, fmt.Errorf("policy %s has no parameter %q; it has: %s",
				d.GetName(), name, strings.Join(slices.Sorted(maps.Keys(types)), ", "))
		}
		if err := checkType(kind, given[name]); err != nil {
			return nil, fmt.Errorf("policy %s, parameter %s: %w", d.GetName(), name, err)
		}
		resolved[name] = given[name]
	}
	return resolved, nil
}

func checkType(kind, value string) error {
	var err error
	switch kind {
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
		return fmt.Errorf("%q is not a value of type %s", value, kind)
	}
	return nil
}
