// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"strconv"

	"github.com/conch-serving/conch/sidecar/dispatch/queue/adaptive"
)

// adaptiveDiscipline is Conch's own, the default: deferred batching that starts
// earlier where that is worth it. Package adaptive has its rules.
type adaptiveDiscipline struct {
	*adaptive.Params
}

// Adaptive returns the discipline adaptive and the drop policy reserve with the given
// constants, to measure what each rule gains.
func Adaptive(params adaptive.Params) (Discipline, *DropPolicy) {
	return adaptiveDiscipline{Params: &params}, reserve(&params)
}

func adaptiveKind() Kind {
	const idle = "idle"
	usual := adaptive.Defaults()
	return Kind{
		Description: Description{
			Name:        "adaptive",
			Help:        "defer, but start earlier by as much as executors would idle, and at once where models compete for few executors",
			DefaultDrop: "reserve",
			Parameters: []Parameter{{
				Name: idle, Default: strconv.FormatFloat(usual.Idle, 'g', -1, 64),
				Help: "load is low while more than this share of the executors is free, or the models need clearly fewer than the rest: then batches start at once only while fewer are busy than the load needs, so that the others stay idle",
			}},
		},
		New: func(params map[string]string) (Discipline, error) {
			a := adaptive.Defaults()
			if text, ok := params[idle]; ok {
				var err error
				a.Idle, err = strconv.ParseFloat(text, 64)
				if err != nil || !(a.Idle >= 0 && a.Idle <= 1) {
					return nil, fmt.Errorf("parameter %s=%q is not a number from 0 to 1", idle, text)
				}
			}
			return adaptiveDiscipline{Params: &a}, nil
		},
	}
}

func (adaptiveDiscipline) DefaultDrop() string { return "reserve" }
