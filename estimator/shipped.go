// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/conch-serving/conch/estimator/data"
)

// Shipped are the factors of estimator/data/factors.json, by GPU type and runtime ("V100/eager").
func Shipped() (map[string]Factors, error) {
	var all map[string]Factors
	if err := json.Unmarshal(data.Factors(), &all); err != nil {
		return nil, fmt.Errorf("estimator/data/factors.json: %w", err)
	}
	for name, f := range all {
		if !f.Check() {
			return nil, fmt.Errorf("estimator/data/factors.json: %s is not usable", name)
		}
	}
	return all, nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func cut(name string) (gpuName, runtime string, ok bool) { return strings.Cut(name, "/") }
