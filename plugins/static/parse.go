// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package static

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// assignment is one entry of a parameter such as
// "resnet50 = gpu0, gpu1; bert = gpu2".
type assignment struct {
	name  string
	items []string
}

// parseAssignments reads entries "name = item, item", separated by semicolons
// or line breaks. White space around names and items means nothing; empty
// entries are skipped, empty items and repeated names are errors. A mapping of
// conch.yaml comes as JSON, {"name": ["item", "item"]}, and means the same.
func parseAssignments(text string) ([]assignment, error) {
	if strings.HasPrefix(strings.TrimSpace(text), "{") {
		return parseMapping(text)
	}
	var list []assignment
	seen := make(map[string]bool)
	for _, entry := range strings.FieldsFunc(text, func(r rune) bool { return r == ';' || r == '\n' }) {
		entry = strings.TrimSpace(entry)
		if entry == "" {
			continue
		}
		name, rest, ok := strings.Cut(entry, "=")
		name = strings.TrimSpace(name)
		if !ok || name == "" {
			return nil, fmt.Errorf("%q is not of the form NAME = ITEM, ITEM", entry)
		}
		if seen[name] {
			return nil, fmt.Errorf("%q is given twice", name)
		}
		seen[name] = true
		a := assignment{name: name}
		for _, item := range strings.Split(rest, ",") {
			item = strings.TrimSpace(item)
			if item == "" {
				return nil, fmt.Errorf("%q has an empty item", entry)
			}
			a.items = append(a.items, item)
		}
		list = append(list, a)
	}
	return list, nil
}

func parseMapping(text string) ([]assignment, error) {
	var given map[string]any
	if err := json.Unmarshal([]byte(text), &given); err != nil {
		return nil, fmt.Errorf("%q is not JSON: %w", text, err)
	}
	list := make([]assignment, 0, len(given))
	for _, name := range slices.Sorted(maps.Keys(given)) {
		items, isList := given[name].([]any)
		if !isList {
			items = []any{given[name]}
		}
		a := assignment{name: name}
		for _, item := range items {
			switch item.(type) {
			case string, float64:
				a.items = append(a.items, strings.TrimSpace(fmt.Sprint(item)))
			default:
				return nil, fmt.Errorf("%s: %v is neither a word nor a number", name, item)
			}
		}
		if name == "" || len(a.items) == 0 || slices.Contains(a.items, "") {
			return nil, fmt.Errorf("%q: %v has an empty name or item", name, given[name])
		}
		list = append(list, a)
	}
	return list, nil
}

// settings are the parameters, parsed.
type settings struct {
	discipline string
	dropPolicy string
	// perModel overrides the discipline of some models.
	perModel map[string]string
	// dispatch are the parameters of each discipline; those of "" are every
	// discipline's.
	dispatch map[string]map[string]string
	// shares of the partitions of a GPU; the key "*" is for every other GPU.
	shares map[string][]uint32
	// placement of a model: GPUs or partitions. Order is kept for reasons.
	placement map[string][]string
}

func parseSettings(parameters map[string]string) (*settings, error) {
	s := &settings{
		discipline: parameters[paramDiscipline],
		dropPolicy: parameters[paramDropPolicy],
		perModel:   make(map[string]string),
		dispatch:   make(map[string]map[string]string),
		shares:     make(map[string][]uint32),
		placement:  make(map[string][]string),
	}
	if s.discipline == "" {
		s.discipline = defaultDiscipline
	}
	if err := checkDiscipline(s.discipline); err != nil {
		return nil, fmt.Errorf("parameter %s: %w", paramDiscipline, err)
	}
	if !slices.Contains(append(dropPolicies(), ""), s.dropPolicy) {
		return nil, fmt.Errorf("parameter %s: %q is not a drop policy; there are: %s",
			paramDropPolicy, s.dropPolicy, strings.Join(dropPolicies(), ", "))
	}
	for _, step := range []struct {
		name string
		take func(assignment) error
	}{
		{paramDisciplines, s.takeDiscipline},
		{paramDispatch, s.takeDispatch},
		{paramPartitions, s.takeShares},
		{paramPlacement, func(a assignment) error { s.placement[a.name] = a.items; return nil }},
	} {
		list, err := parseAssignments(parameters[step.name])
		for i := 0; err == nil && i < len(list); i++ {
			err = step.take(list[i])
		}
		if err != nil {
			return nil, fmt.Errorf("parameter %s: %w", step.name, err)
		}
	}
	return s, nil
}

func (s *settings) takeDiscipline(a assignment) error {
	if err := single(s.perModel, a); err != nil {
		return err
	}
	return checkDiscipline(a.items[0])
}

// takeDispatch takes "NAME = VALUE" or "DISCIPLINE.NAME = VALUE".
func (s *settings) takeDispatch(a assignment) error {
	discipline, name, ok := strings.Cut(a.name, ".")
	if !ok {
		discipline, name = "", a.name
	} else if err := checkDiscipline(discipline); err != nil {
		return fmt.Errorf("%s: %w", a.name, err)
	}
	if s.dispatch[discipline] == nil {
		s.dispatch[discipline] = make(map[string]string)
	}
	return single(s.dispatch[discipline], assignment{name: name, items: a.items})
}

func (s *settings) takeShares(a assignment) error {
	var sum uint64
	for _, item := range a.items {
		share, err := strconv.ParseUint(item, 10, 32)
		if err != nil || share < 1 || share > 100 {
			return fmt.Errorf("%s: %q is not a thread percentage from 1 to 100", a.name, item)
		}
		sum += share
		s.shares[a.name] = append(s.shares[a.name], uint32(share))
	}
	if sum > 100 {
		return fmt.Errorf("%s: the shares add up to %d, more than 100", a.name, sum)
	}
	return nil
}

func single(into map[string]string, a assignment) error {
	if len(a.items) != 1 {
		return fmt.Errorf("%s: one value is wanted, not %d", a.name, len(a.items))
	}
	into[a.name] = a.items[0]
	return nil
}

func checkDiscipline(name string) error {
	for _, known := range disciplines() {
		if name == known {
			return nil
		}
	}
	return fmt.Errorf("%q is not a dispatch discipline; there are: %s", name, strings.Join(disciplines(), ", "))
}
