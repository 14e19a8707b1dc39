// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import "github.com/conch-serving/conch/sidecar/dispatch/queue/adaptive"

// reserve is Conch's own: the window drop (see window) with a reserve. No request is
// given up for a batch that is larger than the load needs: see adaptive.Params.Hold.
type reserve struct{ params *adaptive.Params }

func (reserve) Name() string  { return "reserve" }
func (reserve) bounded() bool { return true }

func (r reserve) hold(l *Load, load float64) (int, Time) { return r.params.Hold(l, load) }

func (r reserve) surgeLoad(now Time, l *Load, waiting int) float64 {
	return r.params.SurgeLoad(now, l, waiting)
}
