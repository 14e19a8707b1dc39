// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// unseenTable has the ratio of every load of unseen, by the set and the family of the load, with the least first.
func unseenTable(f byName) string {
	var rows, all [][]string
	for _, set := range unseenSets() {
		prefix := "unseen." + set.name + "."
		families := map[string][]float64{}
		var ratios []float64
		for name, v := range f {
			load, is := strings.CutPrefix(name, prefix)
			load, each := strings.CutSuffix(load, ".ratio")
			if !is || !each {
				continue
			}
			ratios = append(ratios, v.Value)
			family := strings.TrimRight(load, "0123456789")
			families[family] = append(families[family], v.Value)
		}
		if len(ratios) == 0 {
			continue
		}
		count := func(good func(v float64) bool) string {
			n := 0
			for _, v := range ratios {
				if good(v) {
					n++
				}
			}
			return fmt.Sprint(n)
		}
		rows = append(rows, []string{
			"`" + set.name + "`: " + set.is, fmt.Sprint(len(ratios)), count(func(v float64) bool { return v >= near }), count(func(v float64) bool { return v >= .97 }),
			count(func(v float64) bool { return v > 1.03 }), fmt.Sprintf("%.3f", slices.Min(ratios)),
		})
		for _, family := range slices.Sorted(maps.Keys(families)) {
			list := families[family]
			slices.Sort(list)
			var texts []string
			for _, v := range list {
				texts = append(texts, fmt.Sprintf("%.3f", v))
			}
			all = append(all, []string{set.name + ", " + strings.TrimSuffix(family, ".gpus"), strings.Join(texts, " ")})
		}
	}
	return write([]string{"loads", "how many", "at least .995", "at least .97", "above 1.03", "least"}, rows) + "\n" + write([]string{"loads", "ratio of each"}, all)
}
