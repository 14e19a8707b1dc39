// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package estimates

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/conch-serving/conch/estimator"
	"github.com/conch-serving/conch/estimator/gpu"
	"github.com/conch-serving/conch/estimator/tritonmodel"
	"github.com/conch-serving/conch/plugins/policy/grid"
	"github.com/conch-serving/conch/repo"
)

// rest is how long the book rests after a model, as a multiple of what it took: estimating takes a quarter of one core at the most.
const rest = 3

// Place is a type of GPU, or of CPU, that models may run on.
type Place struct {
	Type string
	// Emulated: what executes there is no such GPU. Python models are not estimated for it, since they run at a pace of their own.
	Emulated bool
}

// Estimate of a model on a place.
type Estimate struct {
	Model, Digest string
	Place
	// Estimate is nil where there is none; Reason says why.
	*estimator.Estimate
	Reason string
}

// Options of a Book.
type Options struct {
	// Open opens the content of a model's file; nil: nothing is estimated.
	Open func(repo.File) (File, error)
	// Bundles describe devices that were calibrated; their names are GPU types, and win over data sheets.
	Bundles []*estimator.Bundle
	// After fires once, d from now.
	After func(d time.Duration) <-chan time.Time
	// Now is the time.
	Now func() time.Time
}

// File is the content of a model's file.
type File interface {
	ReadAt(p []byte, off int64) (int, error)
	Close() error
}

// Book holds estimates by model, its content, and place. Its methods are safe for concurrent use.
type Book struct {
	options Options
	// devices by type and runtime, as of an epoch; they belong to Run.
	devices map[[2]string]estimator.Device
	asOf    uint64

	mu    sync.Mutex
	known map[key]*Estimate
	// bundles, those that win first; epoch counts their changes.
	bundles []*estimator.Bundle
	epoch   uint64
	wanted  []*repo.Model
	places  []Place
	// wake makes Run look at wanted.
	wake chan struct{}
}

// key is a model with its content on a place: models that are copies of one another have estimates of their own, which bear their names.
type key struct{ model, digest, place string }

func keyOf(m *repo.Model, place string) key { return key{m.Name, m.Digest, place} }

// New makes an empty book.
func New(o Options) *Book {
	return &Book{options: o, bundles: o.Bundles, known: map[key]*Estimate{}, devices: map[[2]string]estimator.Device{}, wake: make(chan struct{}, 1)}
}

// Want says which models there are, and where they may run; estimates of others are forgotten. It does not wait.
func (b *Book) Want(models []*repo.Model, places []Place) {
	b.mu.Lock()
	b.wanted, b.places = slices.Clone(models), slices.Clone(places)
	kept := map[key]*Estimate{}
	for _, m := range models {
		for _, p := range places {
			k := keyOf(m, p.Type)
			if e := b.known[k]; e != nil {
				kept[k] = e
			}
		}
	}
	b.known = kept
	b.mu.Unlock()
	b.prod()
}

// Calibrated takes a bundle, which wins over what was known of its device, and forgets what was estimated without it.
func (b *Book) Calibrated(bundle *estimator.Bundle) {
	b.mu.Lock()
	b.bundles = append([]*estimator.Bundle{bundle}, b.bundles...)
	clear(b.known)
	b.epoch++
	b.mu.Unlock()
	b.prod()
}

func (b *Book) prod() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// Of is the estimate of a model on a type; nil where there is none yet.
func (b *Book) Of(m *repo.Model, gpuType string) *Estimate {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.known[keyOf(m, gpuType)]
}

// Memory is the estimated memory of a model at its largest batch, in bytes, on the first type of GPU or CPU with an estimate from its graph; nil where only the size of its files is known.
func (b *Book) Memory(m *repo.Model) *estimator.Memory {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.places {
		if e := b.known[keyOf(m, p.Type)]; e != nil && e.Estimate != nil && e.Graph {
			memory := e.Memory
			return &memory
		}
	}
	return nil
}

// Grids are the profiles of a model that were estimated.
func (b *Book) Grids(m *repo.Model) []grid.Profile {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []grid.Profile
	for _, p := range b.places {
		if e := b.known[keyOf(m, p.Type)]; e != nil && e.Estimate != nil && len(e.Points) > 0 {
			all = append(all, e.Profile)
		}
	}
	return all
}

// Run estimates what is wanted until ctx ends. Found is called with every new estimate, done when nothing more is wanted and something was found since.
func (b *Book) Run(ctx context.Context, found func(*Estimate), done func(all []*Estimate)) {
	var fresh []*Estimate
	for {
		m, p, ok := b.next()
		if !ok {
			if len(fresh) > 0 {
				done(fresh)
				fresh = nil
			}
			select {
			case <-ctx.Done():
				return
			case <-b.wake:
			}
			continue
		}
		b.mu.Lock()
		epoch := b.epoch
		b.mu.Unlock()
		began := b.options.Now()
		e := b.estimate(m, p)
		took := b.options.Now().Sub(began)
		b.mu.Lock()
		stale := epoch != b.epoch
		if !stale {
			b.known[keyOf(m, p.Type)] = e
		}
		b.mu.Unlock()
		if stale {
			continue // a device is another by now
		}
		fresh = append(fresh, e)
		found(e)
		select {
		case <-ctx.Done():
			return
		case <-b.options.After(rest * took):
		}
	}
}

// next is a model and a place without an estimate.
func (b *Book) next() (*repo.Model, Place, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.options.Open == nil {
		return nil, Place{}, false
	}
	for _, m := range b.wanted {
		if m.Err() != nil || m.Config == nil {
			continue
		}
		for _, p := range b.places {
			if b.known[keyOf(m, p.Type)] == nil {
				return m, p, true
			}
		}
	}
	return nil, Place{}, false
}

// estimate never fails and never panics: a file that breaks the estimator costs its model the estimate.
func (b *Book) estimate(m *repo.Model, p Place) (e *Estimate) {
	e = &Estimate{Model: m.Name, Digest: m.Digest, Place: p}
	defer func() {
		if r := recover(); r != nil {
			e.Estimate, e.Reason = nil, fmt.Sprintf("the estimator failed: %v; please report it with the model's graph", r)
		}
	}()
	estimate, err := b.work(m, p)
	if err != nil {
		e.Reason = err.Error()
		return e
	}
	// As plugins/policy/grid has them.
	slices.SortFunc(estimate.Points, func(x, y grid.Point) int {
		return cmp.Or(cmp.Compare(x.ThreadPercentage, y.ThreadPercentage), cmp.Compare(x.Batch, y.Batch))
	})
	e.Estimate = estimate
	return e
}

func (b *Book) work(m *repo.Model, p Place) (e *estimator.Estimate, err error) {
	served := repo.ServedVersions(m.Config, m.Versions)
	if len(served) == 0 {
		return nil, errors.New("no version of the model is served")
	}
	// Of several versions the largest number stands for all.
	directory := strconv.FormatInt(slices.Max(served), 10)
	var names []string
	files := map[string]repo.File{}
	for _, f := range m.Files {
		if path.Dir(f.Path) == directory {
			names = append(names, path.Base(f.Path))
			files[path.Base(f.Path)] = f
		}
	}
	what := tritonmodel.Of(m.Config, names)
	file, ok := files[what.File]
	switch {
	case len(m.Config.GetEnsembleScheduling().GetStep()) > 0:
		return nil, errors.New("an ensemble executes nothing itself; its members are estimated")
	case !ok:
		return nil, fmt.Errorf("version %s has no %s", directory, what.File)
	}
	device, err := b.device(p.Type, what.Runtime)
	switch {
	case err != nil:
		return nil, err
	case what.Assumption != "" && p.Emulated && !b.bundled(p.Type):
		return nil, fmt.Errorf("an emulated %s does not say how fast a python model runs", p.Type)
	}
	content, err := b.options.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, content.Close()) }()
	subject, err := estimator.Read(content, file.Size, m.Name+"/"+file.Path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, subject.Close()) }()
	subject.Name = m.Name
	if e, err = subject.Estimate(what.Declared, what.Grid(), device); err != nil {
		return nil, err
	}
	if what.Assumption != "" {
		e.Warnings = append([]string{what.Assumption}, e.Warnings...)
	}
	return e, nil
}

// device is a calibrated one of that name, else that of the data sheet. Run alone calls it.
func (b *Book) device(gpuType, runtime string) (estimator.Device, error) {
	name := [2]string{gpuType, runtime}
	b.mu.Lock()
	bundles, epoch := b.bundles, b.epoch
	b.mu.Unlock()
	if epoch != b.asOf {
		clear(b.devices)
		b.asOf = epoch
	}
	if d, ok := b.devices[name]; ok {
		return d, nil
	}
	d, err := newDevice(bundles, gpuType, runtime)
	if err == nil {
		b.devices[name] = d
	}
	return d, err
}

// bundled reports whether what is called gpuType here was measured.
func (b *Book) bundled(gpuType string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.bundles, func(bundle *estimator.Bundle) bool { return bundle.Sheet.Is(gpuType) })
}

func newDevice(bundles []*estimator.Bundle, gpuType, runtime string) (estimator.Device, error) {
	for _, bundle := range bundles {
		if bundle.Sheet.Is(gpuType) {
			return bundle.Device()
		}
	}
	d, err := estimator.NewDevice(gpuType, runtime)
	if errors.Is(err, gpu.ErrUnknown) {
		return d, fmt.Errorf("%w; tritonctl calibrate measures another one, and estimator.bundles in conch.yaml names the result", err)
	}
	return d, err
}
