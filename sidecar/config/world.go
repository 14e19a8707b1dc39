// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/conch-serving/conch/internal/spelling"
	"github.com/conch-serving/conch/plugins/policy/grid"
)

// App is a name that clients ask for by accuracy and latency instead of a model
// (INFaaS, section 3).
type App struct {
	// Accuracy and SLO are the wishes of a request that says nothing.
	Accuracy float64  `yaml:"accuracy"`
	SLO      Duration `yaml:"slo"`
	// Variants are models of the repository with one tensor signature.
	Variants []Variant `yaml:"variants"`
}

// Variant is one build of an app's model.
type Variant struct {
	Model     string  `yaml:"model"`
	Accuracy  float64 `yaml:"accuracy"`
	Precision string  `yaml:"precision"`
	// Places are the types of GPUs or CPUs that it runs on; empty: any GPU.
	Places []string `yaml:"places"`
	Cost   float64  `yaml:"costPerHour"`
}

// Interference is gpulet's linear model of what a co-runner costs on one type of
// GPU: l2Self*L2a + l2Other*L2b + bandwidthSelf*Ba + bandwidthOther*Bb + constant,
// never below 1 (gpulet, section 4.4).
type Interference struct {
	Type           string  `yaml:"type"`
	L2Self         float64 `yaml:"l2Self"`
	L2Other        float64 `yaml:"l2Other"`
	BandwidthSelf  float64 `yaml:"bandwidthSelf"`
	BandwidthOther float64 `yaml:"bandwidthOther"`
	Constant       float64 `yaml:"constant"`
}

// Offer is a type of GPU that could be rented (objective min-cost).
type Offer struct {
	Type      string   `yaml:"type"`
	Count     int      `yaml:"count"`
	Cost      float64  `yaml:"costPerHour"`
	Memory    Size     `yaml:"memory"`
	SMCount   uint32   `yaml:"smCount"`
	Bandwidth Size     `yaml:"bandwidth"`
	Start     Duration `yaml:"start"`
}

// CPUs lets models run on this machine's CPUs, in partitions without a GPU.
type CPUs struct {
	// Cores that models may use; 0: none.
	Cores uint32 `yaml:"cores"`
	// Type is what profiles call them; default "cpu".
	Type   string  `yaml:"type"`
	Memory Size    `yaml:"memory"`
	Cost   float64 `yaml:"costPerHour"`
}

// Estimates say what conch foretells of models before it has observed them.
type Estimates struct {
	// Off: models are not estimated from their graphs.
	Off bool `yaml:"off"`
	// Bundles are files of tritonctl calibrate; each describes one type of device, and wins over the data sheet of that name. Relative names lie beside
	// conch.yaml.
	Bundles []string `yaml:"bundles"`
}

// findBundles makes the names of bundles absolute.
func (c *Config) findBundles(path string) {
	for i, file := range c.Estimates.Bundles {
		if !filepath.IsAbs(file) {
			c.Estimates.Bundles[i] = filepath.Join(filepath.Dir(path), file)
		}
	}
}

// UnknownModels says of each model that conch.yaml names, and that is none of those known, what was probably meant; by name.
func (c *Config) UnknownModels(known []string) (all []Problem) {
	for _, name := range slices.Sorted(maps.Keys(c.Models)) {
		if slices.Contains(known, name) {
			continue
		}
		all = append(all, c.UnknownModel("models."+name, "there is no such model, so that this says nothing", name, known))
	}
	return all
}

// UnknownModel is a problem with a text that says that a name is no model's, and the known name that was meant, if one is near.
func (c *Config) UnknownModel(path, text, name string, known []string) Problem {
	if near := spelling.Nearest(name, known); near != "" {
		text += fmt.Sprintf("; did you mean %q?", near)
	}
	return c.Problem(path, text)
}

// ProfileFile is where the operator declares a model's profile; empty: nowhere.
// Beside a model's config.pbtxt conch finds profile.json and profile.csv by itself.
func (c *Config) ProfileFile(model string) string { return c.Models[model].Profiles }

// DeclaredProfiles are the grids that the files of models.NAME.profiles hold, by
// model. They were read when the configuration was loaded.
func (c *Config) DeclaredProfiles() map[string][]grid.Profile { return c.profiles }

// readProfiles reads the files that models name; relative names lie beside
// conch.yaml.
func (c *Config) readProfiles(path string) error {
	invalid := &InvalidError{File: path}
	c.profiles = map[string][]grid.Profile{}
	for _, name := range slices.Sorted(maps.Keys(c.Models)) {
		file := c.Models[name].Profiles
		if file == "" {
			continue
		}
		if !filepath.IsAbs(file) {
			file = filepath.Join(filepath.Dir(path), file)
		}
		read, err := readGrid(file)
		if err != nil {
			key := "models." + name + ".profiles"
			invalid.Problems = append(invalid.Problems, Problem{Path: key, Line: c.lines[key], Text: err.Error()})
			continue
		}
		c.profiles[name] = read
	}
	if len(invalid.Problems) > 0 {
		return invalid
	}
	return nil
}

func readGrid(path string) ([]grid.Profile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w; name a readable profile file (CSV or JSON)", err)
	}
	all, err := grid.Read(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return all, nil
}

// world checks apps, interference, offers and CPUs.
func (v *validator) world(c *Config) {
	for _, name := range slices.Sorted(maps.Keys(c.Apps)) {
		v.app("apps."+name, c.Apps[name])
	}
	seen := map[string]bool{}
	for i, m := range c.Interference {
		path := fmt.Sprintf("interference[%d]", i)
		if m.Type == "" || seen[m.Type] {
			v.problem(path+".type", "%q is empty or there twice; name each type of GPU once", m.Type)
		}
		seen[m.Type] = true
		for key, value := range map[string]float64{"l2Self": m.L2Self, "l2Other": m.L2Other, "bandwidthSelf": m.BandwidthSelf, "bandwidthOther": m.BandwidthOther, "constant": m.Constant} {
			if math.IsNaN(value) || math.Abs(value) > 100 {
				v.problem(path+"."+key, "%v is no coefficient; they are a few units at most", value)
			}
		}
	}
	for i, o := range c.Offers {
		path := fmt.Sprintf("offers[%d]", i)
		if o.Type == "" {
			v.problem(path+".type", "is missing; name the type of GPU")
		}
		if o.Count < 0 || o.Cost < 0 || o.Start < 0 {
			v.problem(path, "count, costPerHour and start are not negative")
		}
	}
	v.merge(c.Merge)
	if c.CPUs.Cores > 0 && c.Driver.Kind == DriverAttach {
		v.problem("cpus.cores", "partitions on CPUs are servers that conch starts; with driver attach others run the servers")
	}
	if c.CPUs.Cost < 0 {
		v.problem("cpus.costPerHour", "%v is negative", c.CPUs.Cost)
	}
}

// merge checks groups of models to merge.
func (v *validator) merge(m Merge) {
	in := map[string]int{}
	for i, g := range m.List {
		path := fmt.Sprintf("merge[%d]", i)
		v.oneOf(path+".mode", g.Mode, MergeBackbone, "superop", "superop-padded")
		if g.Mode == "superop" || g.Mode == "superop-padded" {
			v.problem(path+".mode", "%s is made and measured by tritonctl merge, and cannot be served; %s can", g.Mode, MergeBackbone)
		}
		if len(g.Members) < 2 {
			v.problem(path+".members", "names %d models; a group takes two or more", len(g.Members))
		}
		for _, name := range g.Members {
			if other, there := in[name]; there {
				v.problem(path+".members", "%s is in merge[%d] already; a model is in one group", name, other)
			}
			in[name] = i
		}
	}
}

func (v *validator) app(path string, a App) {
	if a.SLO < 0 {
		v.problem(path+".slo", "%v is negative", a.SLO)
	}
	v.fraction(path+".accuracy", a.Accuracy, 1)
	if len(a.Variants) == 0 {
		v.problem(path+".variants", "is empty; list the models that can serve the app, with their accuracies")
	}
	seen := map[string]bool{}
	for i, x := range a.Variants {
		at := fmt.Sprintf("%s.variants[%d]", path, i)
		if x.Model == "" || seen[x.Model] {
			v.problem(at+".model", "%q is empty or a variant twice", x.Model)
		}
		seen[x.Model] = true
		v.fraction(at+".accuracy", x.Accuracy, 1)
		if x.Cost < 0 {
			v.problem(at+".costPerHour", "%v is negative", x.Cost)
		}
	}
}
