// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package regress

import (
	"math"
	"slices"
	"sort"
)

// Boost is a sum of small regression trees, each fitted to what the ones before left over.
type Boost struct {
	Base  float64 `json:"base"`
	Trees []Tree  `json:"trees"`
}

// Tree is a binary tree in arrays: node 0 is the root. A node whose Feature is negative is a leaf of that Value; another goes to Left where the
// feature is at most Threshold, else to Left+1.
type Tree struct {
	Feature   []int     `json:"f"`
	Threshold []float64 `json:"t"`
	Left      []int     `json:"l"`
	Value     []float64 `json:"v"`
}

// BoostOptions say how much is fitted.
type BoostOptions struct {
	Trees, Depth, LeastLeaf int
	Rate                    float64
	// Huber bounds a residual's pull, in units of the target; 0 means no bound.
	Huber float64
	// Shrink is added to the count of samples of a leaf: small leaves say less.
	Shrink float64
}

const bins = 64

// FitBoost grows trees level by level on features in at most 64 bins.
func FitBoost(s *Samples, o BoostOptions) *Boost {
	n, d := len(s.X), len(s.Names)
	b := &Boost{Base: median(s.Y)}
	edges := make([][]float64, d)
	codes := make([][]uint8, d)
	for j := range edges {
		edges[j], codes[j] = binned(s.X, j)
	}
	residual := make([]float64, n)
	for i, y := range s.Y {
		residual[i] = y - b.Base
	}
	pull := make([]float64, n)
	where := make([]int, n)
	for range o.Trees {
		for i, r := range residual {
			pull[i] = r
			if o.Huber > 0 {
				pull[i] = min(max(r, -o.Huber), o.Huber)
			}
			where[i] = 0
		}
		t := grow(codes, edges, pull, where, o)
		for i := range residual {
			residual[i] -= t.Value[where[i]]
		}
		b.Trees = append(b.Trees, t)
	}
	return b
}

// binned codes a feature by the greatest of its quantiles that is not above the value.
func binned(x [][]float64, j int) (edges []float64, codes []uint8) {
	values := make([]float64, len(x))
	for i, row := range x {
		values[i] = row[j]
	}
	sorted := slices.Sorted(slices.Values(values))
	for q := 1; q < bins; q++ {
		k := q * len(sorted) / bins
		if k == 0 {
			continue
		}
		e := (sorted[k-1] + sorted[k]) / 2
		if sorted[k-1] == sorted[k] {
			e = sorted[k]
		}
		if len(edges) == 0 || e > edges[len(edges)-1] {
			edges = append(edges, e)
		}
	}
	codes = make([]uint8, len(x))
	for i, v := range values {
		codes[i] = uint8(sort.SearchFloat64s(edges, v))
	}
	return edges, codes
}

type cell struct{ sum, count float64 }

// grow makes one tree and leaves in where the leaf of every sample.
func grow(codes [][]uint8, edges [][]float64, pull []float64, where []int, o BoostOptions) Tree {
	t := Tree{Feature: []int{-1}, Threshold: []float64{0}, Left: []int{0}, Value: []float64{0}}
	level := []int{0}
	for range o.Depth {
		slot := map[int]int{}
		for k, node := range level {
			slot[node] = k
		}
		place := make([]int, len(t.Feature))
		for i := range place {
			place[i] = -1
		}
		for node, k := range slot {
			place[node] = k
		}
		type split struct {
			gain      float64
			feature   int
			threshold float64
			code      uint8
		}
		best := make([]split, len(level))
		histogram := make([]cell, len(level)*bins)
		for j := range codes {
			clear(histogram)
			for i, c := range codes[j] {
				if k := place[where[i]]; k >= 0 {
					h := &histogram[k*bins+int(c)]
					h.sum += pull[i]
					h.count++
				}
			}
			for k := range level {
				row := histogram[k*bins : (k+1)*bins]
				var all, left cell
				for _, h := range row {
					all.sum += h.sum
					all.count += h.count
				}
				for c := range edges[j] {
					left.sum += row[c].sum
					left.count += row[c].count
					right := cell{all.sum - left.sum, all.count - left.count}
					if left.count < float64(o.LeastLeaf) || right.count < float64(o.LeastLeaf) {
						continue
					}
					gain := left.sum*left.sum/(left.count+o.Shrink) + right.sum*right.sum/(right.count+o.Shrink) - all.sum*all.sum/(all.count+o.Shrink)
					if gain > best[k].gain+1e-12 {
						best[k] = split{gain, j, edges[j][c], uint8(c)}
					}
				}
			}
		}
		var next []int
		codeOf := make([]uint8, len(t.Feature))
		for k, node := range level {
			if best[k].gain <= 0 {
				continue
			}
			t.Feature[node], t.Threshold[node], t.Left[node] = best[k].feature, best[k].threshold, len(t.Feature)
			codeOf[node] = best[k].code
			for range 2 {
				next = append(next, len(t.Feature))
				t.Feature, t.Threshold, t.Left, t.Value = append(t.Feature, -1), append(t.Threshold, 0), append(t.Left, 0), append(t.Value, 0)
			}
		}
		if len(next) == 0 {
			break
		}
		for i, node := range where {
			if f := t.Feature[node]; f >= 0 {
				where[i] = t.Left[node]
				if codes[f][i] > codeOf[node] {
					where[i]++
				}
			}
		}
		level = next
	}
	sums := make([]cell, len(t.Feature))
	for i, node := range where {
		sums[node].sum += pull[i]
		sums[node].count++
	}
	for node, c := range sums {
		if t.Feature[node] < 0 {
			t.Value[node] = round(o.Rate * c.sum / (c.count + o.Shrink + 1e-9))
		}
	}
	return t
}

// Predict is the sum of the trees at a row of features.
func (b *Boost) Predict(row []float64) float64 {
	y := b.Base
	for i := range b.Trees {
		t := &b.Trees[i]
		node := 0
		for t.Feature[node] >= 0 {
			next := t.Left[node]
			if row[t.Feature[node]] > t.Threshold[node] {
				next++
			}
			node = next
		}
		y += t.Value[node]
	}
	return y
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// Quantile is the value that a share q of values does not exceed, by the nearest rank; NaN of none.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(max(int(math.Ceil(q*float64(len(sorted))))-1, 0), len(sorted)-1)]
}
