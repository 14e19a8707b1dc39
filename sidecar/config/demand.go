// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"time"
)

// When a model is loaded.
const (
	// LoadKeep: it has a place whenever there is room, and none that loads on
	// demand takes it.
	LoadKeep = "keep"
	// LoadDemand: it is loaded when requests ask for it, and leaves when it is idle
	// or others need its memory.
	LoadDemand = "demand"
	// LoadNever: it is never loaded, for any caller.
	LoadNever = "never"
)

// Demand bounds how requests wait for models that load on demand.
type Demand struct {
	// Wait is how long one may, Requests how many may, over all models.
	Wait     Duration `yaml:"wait"`
	Requests int      `yaml:"requests"`
}

// LoadOf says when a model is loaded, and of one that loads on demand how long it
// stays without requests; 0: until others need its memory.
func (c *Config) LoadOf(model string) (load string, idle time.Duration) {
	own := c.Models[model]
	load, idle = cmp.Or(own.Load, c.Defaults.Load, LoadKeep), cmp.Or(own.Idle, c.Defaults.Idle).Std()
	if load != LoadDemand {
		idle = 0
	}
	return load, idle
}

// load checks the settings for when a model is loaded.
func (v *validator) load(path, load string, idle Duration) {
	if load != "" {
		v.oneOf(path+".load", load, LoadKeep, LoadDemand, LoadNever)
	}
	if idle < 0 {
		v.problem(path+".idle", "%v is negative", idle)
	}
}

func (v *validator) demand(c *Config) {
	v.positive("demand.wait", c.Demand.Wait)
	if c.Demand.Requests < 1 {
		v.problem("demand.requests", "%d is less than one", c.Demand.Requests)
	}
	v.load("defaults", c.Defaults.Load, c.Defaults.Idle)
	for name, m := range c.Models {
		path := "models." + name
		v.load(path, m.Load, m.Idle)
		load, _ := c.LoadOf(name)
		if m.Idle > 0 && load != LoadDemand {
			v.problem(path+".idle", "says when a model leaves that loads on demand, and %s.load is %s; say load: demand", path, load)
		}
		if load == LoadDemand && m.MinInstances > 0 {
			v.problem(path+".minInstances", "%d places are wanted at all times, and load: demand says that it may have none", m.MinInstances)
		}
	}
}
