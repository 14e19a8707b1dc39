// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"encoding/json"
	"fmt"
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

// Save writes what was learnt to a store.
func (r *Recorder) Save(to store.Store) error {
	var models []store.Change
	for _, m := range r.sorted() {
		m.mu.Lock()
		s := stored{Revision: m.revision}
		for c, l := range m.classes {
			s.Curves = append(s.Curves, storedCurve{GPUType: c.gpuType, Share: c.share, Stored: l.Store()})
		}
		m.mu.Unlock()
		if s.Revision == "" || len(s.Curves) == 0 {
			continue
		}
		text, err := json.Marshal(s)
		if err != nil {
			return fmt.Errorf("profiles of %s: %w", m.name, err)
		}
		models = append(models, store.Change{Bucket: bucket, Key: m.name, Value: text})
	}
	return to.Later(models...)
}

// Restore reads what was learnt about the present revision of the models that
// SetModel named; call it after SetModel. What belongs to another revision is
// left alone.
func (r *Recorder) Restore(from store.Store) error {
	for _, m := range r.sorted() {
		text, err := from.Get(bucket, m.name)
		if err != nil {
			return err
		}
		if text == nil {
			continue
		}
		var s stored
		if err := json.Unmarshal(text, &s); err != nil {
			return fmt.Errorf("stored profiles of %s: %w; remove the state directory to start over", m.name, err)
		}
		m.mu.Lock()
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
