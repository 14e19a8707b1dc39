// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/conch-serving/conch/internal/store"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/observe/curve"
)

// bucket of the store that holds what was learnt: model name to stored.
const bucket = "observe.curves"

// stored is a model's curves as they are kept across restarts.
type stored struct {
	Revision string        `json:"revision"`
	Curves   []storedCurve `json:"curves"`
}

type storedCurve struct {
	GPUType string `json:"gpu_type"`
	Share   uint32 `json:"share"`
	curve.Stored
}

// Save writes to a store what was learnt since the last time.
func (r *Recorder) Save(to store.Store) error {
	var models []store.Change
	saved := map[*model]uint64{}
	for _, m := range r.sorted() {
		m.mu.Lock()
		s := stored{Revision: m.revision}
		measured := uint64(len(m.classes))
		for _, l := range m.classes {
			measured += l.Changes()
		}
		if measured != m.saved {
			for c, l := range m.classes {
				s.Curves = append(s.Curves, storedCurve{GPUType: c.gpuType, Share: c.share, Stored: l.Store()})
			}
		}
		m.mu.Unlock()
		if s.Revision == "" || len(s.Curves) == 0 {
			continue
		}
		saved[m] = measured
		text, err := json.Marshal(s)
		if err != nil {
			return fmt.Errorf("profiles of %s: %w", m.name, err)
		}
		models = append(models, store.Change{Bucket: bucket, Key: m.name, Value: text})
	}
	if len(models) == 0 {
		return nil
	}
	if err := to.Later(models...); err != nil {
		return err
	}
	for m, measured := range saved {
		m.mu.Lock()
		m.saved = measured
		m.mu.Unlock()
	}
	return nil
}

// Prune removes what was learnt of models that have none of the names.
func Prune(in store.Store, models []string) error {
	keys, err := in.Keys(bucket)
	if err != nil {
		return err
	}
	var gone []store.Change
	for _, key := range keys {
		if !slices.Contains(models, key) {
			gone = append(gone, store.Change{Bucket: bucket, Key: key})
		}
	}
	if len(gone) == 0 {
		return nil
	}
	return in.Later(gone...)
}

// Restore reads what was learnt about the present revision of the models that
// SetModel named; call it after SetModel. What belongs to another revision is
// left alone, and so are models whose revision was looked for before.
func (r *Recorder) Restore(from store.Store) error {
	for _, m := range r.sorted() {
		m.mu.Lock()
		wanted := m.revision != "" && !m.looked
		m.mu.Unlock()
		if !wanted {
			continue
		}
		text, err := from.Get(bucket, m.name)
		if err != nil {
			return err
		}
		var s stored
		if text != nil {
			if err := json.Unmarshal(text, &s); err != nil {
				return fmt.Errorf("stored profiles of %s: %w; remove the state directory to start over", m.name, err)
			}
		}
		m.mu.Lock()
		m.looked = true // what cannot be read now is looked for again
		if s.Revision == m.revision {
			for _, c := range s.Curves {
				// What was measured since is newer; a curve of an estimate alone has measured nothing.
				at := class{c.GPUType, c.Share}
				if have := m.classes[at]; have == nil || have.Changes() == 0 {
					m.classes[at] = curve.Restore(c.Stored)
					delete(m.believed, at)
				}
			}
		}
		m.mu.Unlock()
	}
	return nil
}

func decimal(v uint32) string { return strconv.FormatUint(uint64(v), 10) }

// sourceName is a profile's source as metrics and output name it.
func sourceName(s policy.ProfileSource) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "PROFILE_SOURCE_"))
}
