// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package exact

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/conch-serving/conch/plugins/policy"
)

// Options of a search.
type Options struct {
	// Unit in rows per second: rates are divided among partitions in whole units, and asked for in units rounded up. It has to be above 0.
	Unit float64
	// Units of models that have another.
	Units map[string]float64
	// Most units that will be asked for of one model, up to 15.
	Most int
	// Sizes of partitions in percent, ascending, each from 20 to 100; empty: gpulet's.
	Sizes []uint32
	// Parts are the most partitions of a GPU, up to 5; 0: 5. gpulet cuts a GPU in two at most.
	Parts int
	// Steps are the most that the search may take, so that the same question has the same answer on every machine: a step is a load or a sum of loads
	// that is looked at. Where they do not suffice, nothing is found. 0: as many as it takes.
	Steps int
}

// Sizes that gpulet's partitions have, in percent.
func Sizes() []uint32 { return []uint32{20, 40, 50, 60, 80, 100} }

// ErrWorld is wrapped by what makes a snapshot none that can be searched.
var ErrWorld = errors.New("exact: this world cannot be searched")

// World is a snapshot that is asked about. It keeps what it found: it is not safe for concurrent use.
type World struct {
	o            Options
	x            *policy.Index
	gpuType      string
	gpus         int
	coefficients *policy.Interference
	models       []model
	index        map[string]int
	// latency[model][size][batch] in microseconds; batch 0 is nothing.
	latency [][][]float64
	// harm[model][size] is what a model there adds to the slowdown of others on its GPU, own what it adds to its own beside any other.
	harm, own [][]float64
	cuts      [][]int

	// most is the most that may be asked for; bound: parts of units count as whole ones ([World.Impossible]).
	most  Load
	bound bool

	parts map[partKey][]Load
	steps int // taken so far
	// oneGPU and twoGPUs are the loads that so many GPUs carry, made when first needed. top has the maximal loads of one GPU.
	oneGPU, twoGPUs *lattice
	top             []Load
}

type model struct {
	name string
	slo  float64
	// l2 and bandwidth are the largest utilisations over batches on a whole GPU.
	use policy.Load
	// unit in rows per second.
	unit float64
}

// New reads the snapshot. It has up to four available GPUs of one type, without constraints or pinned models, and up to ten models with an SLO and a usable
// profile; rates are not read. Errors wrap [ErrWorld].
func New(s *policy.Snapshot, o Options) (*World, error) {
	if len(o.Sizes) == 0 {
		o.Sizes = Sizes()
	}
	if !(o.Unit > 0) || math.IsInf(o.Unit, 0) || o.Most < 1 || o.Most > maxUnits {
		return nil, fmt.Errorf("%w: a unit of %v rows/s, at most %d a model; it has to be above 0, and from 1 to %d", ErrWorld, o.Unit, o.Most, maxUnits)
	}
	for i, size := range o.Sizes {
		if size < 100/maxParts || size > 100 || i > 0 && size <= o.Sizes[i-1] {
			return nil, fmt.Errorf("%w: the sizes %v do not ascend from %d to 100%%", ErrWorld, o.Sizes, 100/maxParts)
		}
	}
	if o.Parts == 0 {
		o.Parts = maxParts
	}
	if o.Parts < 1 || o.Parts > maxParts {
		return nil, fmt.Errorf("%w: %d partitions a GPU; it takes 1 to %d", ErrWorld, o.Parts, maxParts)
	}
	if err := s.Check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrWorld, err)
	}
	if n := len(s.GetModels()); n == 0 || n > maxModels {
		return nil, fmt.Errorf("%w: %d models; it takes 1 to %d", ErrWorld, n, maxModels)
	}
	if len(s.GetConstraints()) > 0 {
		return nil, fmt.Errorf("%w: it has constraints, which the search does not know", ErrWorld)
	}
	w := &World{o: o, x: policy.NewIndex(s), index: make(map[string]int), parts: make(map[partKey][]Load)}
	w.cuts = cuts(o.Sizes, o.Parts)
	if err := w.readGPUs(); err != nil {
		return nil, err
	}
	for _, m := range s.GetInterference() {
		if m.GetGpuType() == w.gpuType {
			w.coefficients = m
			break
		}
	}
	for _, m := range s.GetModels() {
		if err := w.readModel(m); err != nil {
			return nil, err
		}
	}
	for i := range w.models {
		w.most = w.most.With(i, o.Most)
	}
	return w, nil
}

// readGPUs checks that they are alike and that memory does not bind.
func (w *World) readGPUs() error {
	most := 0
	for _, cut := range w.cuts {
		most = max(most, len(cut))
	}
	for _, g := range w.x.GPUs() {
		if g.GetUnavailable() {
			continue
		}
		if w.gpus++; w.gpus == 1 {
			w.gpuType = g.GetType()
		}
		need := g.GetContextBytes()
		for _, m := range w.x.Snapshot().GetModels() {
			weights, working := w.x.InstanceBytes(&policy.Plan{}, &policy.Instance{Model: m.GetName()})
			need += weights + working
		}
		if need *= uint64(most); g.GetMemoryBytes() > 0 && need > g.GetMemoryBytes() { //nolint:gosec // a handful
			return fmt.Errorf("%w: %s has %d bytes, all models on each of %d partitions take %d: the search does not weigh memory", ErrWorld, g.GetId(), g.GetMemoryBytes(), most, need)
		}
		if g.GetType() != w.gpuType {
			return fmt.Errorf("%w: GPUs of types %s and %s; it takes one type", ErrWorld, w.gpuType, g.GetType())
		}
	}
	if w.gpus == 0 || w.gpus > 4 {
		return fmt.Errorf("%w: %d GPUs; it takes 1 to 4", ErrWorld, w.gpus)
	}
	return nil
}

func (w *World) readModel(m *policy.Model) error {
	p := w.x.UsableProfile(m.GetName(), w.gpuType)
	if p == nil || m.GetSloUs() <= 0 || m.GetName() == "" || len(m.GetDependsOn()) > 0 {
		return fmt.Errorf("%w: %q needs an SLO and a usable profile on %s, and may call no other model", ErrWorld, m.GetName(), w.gpuType)
	}
	if _, twice := w.index[m.GetName()]; twice {
		return fmt.Errorf("%w: two models are called %s", ErrWorld, m.GetName())
	}
	added := model{name: m.GetName(), slo: float64(m.GetSloUs()), unit: cmp.Or(w.o.Units[m.GetName()], w.o.Unit)}
	if !(added.unit > 0) || math.IsInf(added.unit, 0) {
		return fmt.Errorf("%w: a unit of %v rows/s of %s; it has to be above 0", ErrWorld, added.unit, added.name)
	}
	limit := max(1, m.GetMaxBatchSize())
	if limit > 1024 {
		return fmt.Errorf("%w: %s takes batches of %d; up to 1024 are counted through", ErrWorld, added.name, limit)
	}
	for b := uint32(1); b <= limit; b++ {
		use, _ := p.Load(b, 100)
		added.use.L2, added.use.Bandwidth = max(added.use.L2, use.L2), max(added.use.Bandwidth, use.Bandwidth)
	}
	var latency [][]float64
	var harm, own []float64
	w.index[added.name] = len(w.models)
	w.models = append(w.models, added)
	for _, size := range w.o.Sizes {
		row := make([]float64, limit+1)
		for b := uint32(1); b <= limit; b++ {
			l, ok := w.upper(added.name, b, size)
			if !ok {
				return fmt.Errorf("%w: the profile of %s does not say how long %d rows take at %d%%", ErrWorld, added.name, b, size)
			}
			row[b] = l
		}
		latency = append(latency, row)
		use := w.use(added.name, size)
		harm = append(harm, w.coefficients.GetL2Other()*use.L2+w.coefficients.GetBandwidthOther()*use.Bandwidth)
		own = append(own, w.coefficients.GetL2Self()*use.L2+w.coefficients.GetBandwidthSelf()*use.Bandwidth+w.coefficients.GetConstant())
	}
	w.latency, w.harm, w.own = append(w.latency, latency), append(w.harm, harm), append(w.own, own)
	return nil
}

// upper is how long a batch takes alone: at least what a smaller one does, whatever was measured.
func (w *World) upper(name string, batch, size uint32) (us float64, ok bool) {
	p, m := w.x.UsableProfile(name, w.gpuType), w.x.Model(name)
	if m == nil || batch < 1 || batch > max(1, m.GetMaxBatchSize()) {
		return 0, false
	}
	us, ok = p.Upper(batch, size)
	// Between points l is linear, so that the largest of what is smaller is at a point.
	for _, point := range p.GetPoints() {
		if b := point.GetBatch(); b > 0 && b < batch && ok {
			l, _ := p.Upper(b, size)
			us = max(us, l)
		}
	}
	return us, ok && us > 0
}

// use is what a model takes of the caches and the bandwidth of its GPU on a partition of the size.
func (w *World) use(name string, size uint32) policy.Load {
	i, ok := w.index[name]
	if !ok {
		return policy.Load{}
	}
	part := float64(size) / 100
	return policy.Load{L2: w.models[i].use.L2 * part, Bandwidth: w.models[i].use.Bandwidth * part}
}

func (w *World) slo(name string) float64 { return float64(w.x.Model(name).GetSloUs()) }

// alone is the disturbance on a spot without neighbours.
const alone = -1

// slowdown of a model beside others of which the worst disturbs it so much: policy.Interference.Slowdown, with what the other adds given as one number.
func (w *World) slowdown(model, size int, disturbance float64) float64 {
	if disturbance == alone || w.coefficients == nil {
		return 1
	}
	return max(1, w.own[model][size]+disturbance)
}

// cuts are all ways to cut a GPU into so many partitions at most, each as indices of sizes, the largest first. One to which a partition could be
// added is left out: that partition may stay empty.
func cuts(sizes []uint32, parts int) [][]int {
	var all [][]int
	var extend func(cut []int, most int, left uint32)
	extend = func(cut []int, most int, left uint32) {
		if left < sizes[0] || len(cut) == parts {
			all = append(all, cut)
			return
		}
		for i := most; i >= 0; i-- {
			if sizes[i] <= left {
				extend(append(slices.Clip(cut), i), i, left-sizes[i])
			}
		}
	}
	extend(nil, len(sizes)-1, 100)
	return all
}

// Load asked for: every model's rate in units, rounded up. It fails where one is unknown or above [Options.Most] units.
func (w *World) Load(rates map[string]float64) (Load, error) {
	var l Load
	for name, rate := range rates {
		i, ok := w.index[name]
		if !ok {
			return 0, fmt.Errorf("%w: it has no model %s", ErrWorld, name)
		}
		units := math.Ceil(rate/w.models[i].unit - slack)
		if !(units <= float64(w.o.Most)) {
			return 0, fmt.Errorf("%w: %.4g rows/s of %s are more than %d units of %.4g", ErrWorld, rate, name, w.o.Most, w.models[i].unit)
		}
		l = l.With(i, max(0, int(units)))
	}
	return l, nil
}

// step takes so many steps of the budget, and says whether there were any left.
func (w *World) step(n int) bool {
	w.steps += n
	return !w.spent()
}

func (w *World) spent() bool { return w.o.Steps > 0 && w.steps > w.o.Steps }

// Unit of a model, in rows per second; 0 where there is none of that name.
func (w *World) Unit(name string) float64 {
	if i, ok := w.index[name]; ok {
		return w.models[i].unit
	}
	return 0
}
