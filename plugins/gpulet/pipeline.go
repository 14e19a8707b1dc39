// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package gpulet

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/conch-serving/conch/plugins/policy"
)

// readPhases reads the parameter phases: how the SLOs of pipelines are divided among their phases.
func readPhases(text string) (map[string][]float64, error) {
	all := make(map[string][]float64)
	for entry := range strings.SplitSeq(text, ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		name, numbers, ok := strings.Cut(entry, "=")
		if name = strings.TrimSpace(name); !ok || name == "" {
			return nil, fmt.Errorf("gpulet: parameter %s: %q is not PIPELINE=NUMBER:NUMBER, with one number for each phase", paramPhases, entry)
		}
		for number := range strings.SplitSeq(numbers, ":") {
			share, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
			if err != nil || !(share > 0) || math.IsInf(share, 1) {
				return nil, fmt.Errorf("gpulet: parameter %s: %q of pipeline %s is no number above 0", paramPhases, number, name)
			}
			all[name] = append(all[name], share)
		}
	}
	return all, nil
}

// divide gives the models of pipelines their parts of the pipelines' SLOs, as the authors' scheduler has them for game, where every model has the whole
// SLO, and for traffic, where the detector and the two recognisers after it have 90 and 112 of 202 ms.
func (set *settings) divide(s *policy.Snapshot) (*policy.Snapshot, []*policy.Reason, error) {
	var reasons []*policy.Reason
	var wrong error
	slos := s.StepSLOs(func(p *policy.Pipeline) ([]float64, bool) {
		us, ok := p.Phases(s.Takes, set.phases[p.GetName()])
		if !ok {
			wrong = fmt.Errorf("gpulet: parameter %s: pipeline %s has another number of phases than %d", paramPhases, p.GetName(), len(set.phases[p.GetName()]))
		}
		return us, ok
	}, func(p *policy.Pipeline, step int, us float64) {
		reasons = append(reasons, &policy.Reason{Model: p.GetSteps()[step].GetModel(), Text: fmt.Sprintf("pipeline %s leaves its phase %.4g of %.4g ms", p.GetName(), us/1e3, float64(p.GetSloUs())/1e3)})
	})
	if wrong != nil || len(slos) == 0 {
		return s, nil, wrong
	}
	return s.WithSLOs(slos), reasons, nil
}
