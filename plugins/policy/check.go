// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"math"
)

// Check reports numbers that no policy can plan with: rates that are not finite or negative, latencies that are not finite, and pipelines of models
// that there are not. The error
// names the first, and wraps ErrNumber.
func (s *Snapshot) Check() error {
	finite := func(what, of string, v float64) error {
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			return fmt.Errorf("%w: the %s of %s is %v; it has to be a finite number, not below 0", ErrNumber, what, of, v)
		}
		return nil
	}
	for _, m := range s.GetModels() {
		for _, number := range []struct {
			what  string
			value float64
		}{{"rate", m.GetRate()}, {"row rate", m.GetRowRate()}, {"burstiness", m.GetBurstiness()}, {"load time", m.GetLoadSeconds()}} {
			if err := finite(number.what, "model "+m.GetName(), number.value); err != nil {
				return err
			}
		}
	}
	models := make(map[string]bool, len(s.GetModels()))
	for _, m := range s.GetModels() {
		models[m.GetName()] = true
	}
	for _, p := range s.GetPipelines() {
		if err := finite("rate", "pipeline "+p.GetName(), p.GetRate()); err != nil {
			return err
		}
		if err := p.Check(models); err != nil {
			return err
		}
	}
	for _, a := range s.GetApps() {
		if err := finite("rate", "app "+a.GetName(), a.GetRate()); err != nil {
			return err
		}
		for _, w := range a.GetWishes() {
			if err := finite("rate of a wish", "app "+a.GetName(), w.GetRate()); err != nil {
				return err
			}
		}
	}
	for _, p := range s.GetProfiles() {
		for _, point := range p.GetPoints() {
			for _, v := range []float64{point.GetLatencyUs().GetValue(), point.GetLatencyUpperUs()} {
				if err := finite("latency", "the profile of "+p.GetModel()+" on "+p.GetGpuType(), v); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
