// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"slices"
	"strings"

	"github.com/conch-serving/conch/estimator"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control/estimates"
	"github.com/conch-serving/conch/sidecar/control/events"
	"github.com/conch-serving/conch/sidecar/control/snapshot"
	"github.com/conch-serving/conch/sidecar/observe"
)

// places are the types of GPUs and CPUs that models may run on.
func (c *Control) places(settings *config.Config) []estimates.Place {
	nodes, physical := c.nodes(), map[string]bool{}
	for _, n := range nodes {
		for _, g := range n.GetGpus() {
			physical[g.GetType()] = physical[g.GetType()] || !g.GetEmulated()
		}
		if cpu := n.GetCpu(); cpu != nil {
			physical[cpu.GetType()] = physical[cpu.GetType()] || !cpu.GetEmulated()
		}
	}
	offers := snapshot.Offers(settings)
	for _, o := range offers {
		physical[o.GetType()] = true
	}
	var all []estimates.Place
	for _, t := range snapshot.Types(nodes, offers) {
		all = append(all, estimates.Place{Type: t, Emulated: !physical[t]})
	}
	return all
}

// Calibrated takes a bundle: models are estimated anew with it.
func (c *Control) Calibrated(b *estimator.Bundle) {
	c.event(api.Event{Kind: events.DeviceCalibrated, Message: fmt.Sprintf("%s is calibrated on %s: %d measurements; of micro-models that were left out half are within %.0f%%, nine of ten within %.0f%%",
		b.Sheet.Name, b.Server, b.Measurements+b.Shares, 100*b.Median, 100*b.P90)})
	c.estimates.Calibrated(b)
}

// estimated are the profiles that were estimated of a revision's models.
func (c *Control) estimated(files *repo.Revision) snapshot.Grids {
	grids := snapshot.Grids{}
	for _, m := range files.Models {
		grids[m.Name] = c.estimates.Grids(m)
	}
	return grids
}

// foundEstimate makes an estimate the prior of what is observed. The model may be another by now, or gone: what it left behind is forgotten with it.
func (c *Control) foundEstimate(e *estimates.Estimate) {
	if e.Estimate == nil || len(e.Points) == 0 {
		return
	}
	c.mu.Lock()
	files := c.files
	c.mu.Unlock()
	if m := files.Model(e.Model); m == nil || m.Digest != e.Digest {
		return
	}
	if err := c.recorder.SetPrior(e.Model, e.Type, observe.PriorOf(e.Policy(e.Model, e.Type))); err != nil {
		c.log.Warn("an estimate cannot be used", "model", e.Model, "gpu_type", e.Type, "error", err)
	}
}

// foundEstimates plans with what was estimated, and writes down what was not, and what does not fit.
func (c *Control) foundEstimates(all []*estimates.Estimate) {
	var models, remarks []string
	for _, e := range all {
		switch {
		case e.Estimate == nil:
			c.log.Debug("a model is not estimated", "model", e.Model, "gpu_type", e.Type, "reason", e.Reason)
			continue
		case !e.Fits:
			remarks = append(remarks, e.DoesNotFit())
		}
		if len(e.Points) > 0 || e.Graph {
			models = append(models, e.Model)
		}
	}
	slices.Sort(models)
	models = slices.Compact(models)
	if len(models) == 0 && len(remarks) == 0 {
		return
	}
	message := fmt.Sprintf("%s estimated: %s", count(len(models), "model"), strings.Join(models, ", "))
	c.event(api.Event{Kind: events.ModelsEstimated, Message: strings.Join(append([]string{message}, remarks...), "; ")})
	c.alarm(message)
}

// compareEstimate writes down that a model's observed profile is not within the bound of its estimate.
func (c *Control) compareEstimate(p *policy.Profile) {
	c.mu.Lock()
	files := c.files
	c.mu.Unlock()
	if files == nil {
		return
	}
	m := files.Model(p.GetModel())
	if m == nil {
		return
	}
	message, off := c.estimateOff.Compare(c.clock.Now(), c.estimates.Of(m, p.GetGpuType()), p)
	if !off {
		return
	}
	c.event(api.Event{Kind: events.EstimateOff, Message: message, Fields: map[string]string{"model": p.GetModel(), "gpu_type": p.GetGpuType()}})
}
