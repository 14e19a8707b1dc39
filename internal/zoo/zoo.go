// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package zoo

import (
	"bytes"
	"embed"
	"encoding/csv"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

//go:embed data/*.csv
var data embed.FS

// GPU types with published profiles.
const (
	A100      = "A100"
	GTX1080Ti = "1080Ti"
)

// Profile is the published profile of one model on one GPU type: l(b) = Beta + Alpha*b at the whole GPU.
type Profile struct {
	Model   string
	GPUType string
	Alpha   time.Duration
	Beta    time.Duration
	SLO     time.Duration
}

// Latency is l(b), the time of a batch of b rows.
func (p Profile) Latency(b int) time.Duration { return p.Beta + time.Duration(b)*p.Alpha }

// Stretched multiplies the times and the SLO by f, which keeps every ratio between them.
func (p Profile) Stretched(f float64) Profile {
	mul := func(d time.Duration) time.Duration { return time.Duration(math.Round(float64(d) * f)) }
	p.Alpha, p.Beta, p.SLO = mul(p.Alpha), mul(p.Beta), mul(p.SLO)
	return p
}

// GPUTypes lists the GPU types with published profiles.
func GPUTypes() []string { return []string{A100, GTX1080Ti} }

// Profiles lists the published profiles for a GPU type in the paper's order (falling beta/alpha). An unknown type is an error.
func Profiles(gpuType string) ([]Profile, error) {
	file, ok := map[string]string{A100: "model_zoo_a100.csv", GTX1080Ti: "model_zoo_1080ti.csv"}[gpuType]
	if !ok {
		return nil, fmt.Errorf("zoo: no published profiles for GPU type %q; there are some for %s", gpuType, strings.Join(GPUTypes(), ", "))
	}
	rows, err := read(file)
	if err != nil {
		return nil, err
	}
	profiles := make([]Profile, len(rows))
	for i, r := range rows {
		p, err := r.profile(gpuType)
		if err != nil {
			return nil, err
		}
		profiles[i] = p
	}
	return profiles, nil
}

// Lookup finds one published profile. Its error names what there is.
func Lookup(gpuType, model string) (Profile, error) {
	all, err := Profiles(gpuType)
	if err != nil {
		return Profile{}, err
	}
	i := slices.IndexFunc(all, func(p Profile) bool { return p.Model == model })
	if i < 0 {
		names := make([]string, len(all))
		for k, p := range all {
			names[k] = p.Model
		}
		slices.Sort(names)
		return Profile{}, fmt.Errorf("zoo: no model %q for GPU type %s; there are %s", model, gpuType, strings.Join(names, ", "))
	}
	return all[i], nil
}

// Case is one row of Table 2: one model on a number of A100 GPUs. Goodput is in requests per second with at most 1% bad.
type Case struct {
	Profile Profile
	GPUs    int
	// Uncoordinated and Staggered are the analytical batch size and goodput of GPUs that do not and that do take turns.
	Uncoordinated, Staggered struct{ Batch, Goodput float64 }
	// Goodput and MedianBatch are measured, by system: symphony, clockwork, nexus, shepherd.
	Goodput     map[string]float64
	MedianBatch map[string]float64
}

// Cases are the rows of Table 2.
func Cases() ([]Case, error) {
	rows, err := read("table2.csv")
	if err != nil {
		return nil, err
	}
	cases := make([]Case, len(rows))
	for i, r := range rows {
		c := &cases[i]
		if c.Profile, err = r.profile(A100); err != nil {
			return nil, err
		}
		c.Goodput, c.MedianBatch = map[string]float64{}, map[string]float64{}
		for name, into := range map[string]*float64{
			"bs_nocoord": &c.Uncoordinated.Batch, "tpt_nocoord": &c.Uncoordinated.Goodput,
			"bs_staggered": &c.Staggered.Batch, "tpt_staggered": &c.Staggered.Goodput,
		} {
			if *into, err = r.number(name); err != nil {
				return nil, err
			}
		}
		gpus, err := r.number("gpus")
		if err != nil {
			return nil, err
		}
		c.GPUs = int(gpus)
		for _, system := range []string{"symphony", "clockwork", "nexus", "shepherd"} {
			if c.Goodput[system], err = r.number(system); err != nil {
				return nil, err
			}
			if c.MedianBatch[system], err = r.number("median_bs_" + system); err != nil {
				return nil, err
			}
		}
	}
	return cases, nil
}

// row is one line of a table by column name.
type row struct {
	file   string
	fields map[string]string
}

func read(file string) ([]row, error) {
	text, err := data.ReadFile("data/" + file)
	if err != nil {
		return nil, fmt.Errorf("zoo: %w", err)
	}
	records, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("zoo: %s: %w", file, err)
	}
	var rows []row
	for _, rec := range records[1:] {
		fields := make(map[string]string, len(rec))
		for i, v := range rec {
			fields[records[0][i]] = v
		}
		rows = append(rows, row{file: file, fields: fields})
	}
	return rows, nil
}

func (r row) number(column string) (float64, error) {
	f, err := strconv.ParseFloat(r.fields[column], 64)
	if err != nil {
		return 0, fmt.Errorf("zoo: %s: %s of %s: %w", r.file, column, r.fields["model"], err)
	}
	return f, nil
}

func (r row) profile(gpuType string) (Profile, error) {
	p := Profile{Model: r.fields["model"], GPUType: gpuType}
	for column, into := range map[string]*time.Duration{"alpha_ms": &p.Alpha, "beta_ms": &p.Beta, "slo_ms": &p.SLO} {
		ms, err := r.number(column)
		if err != nil {
			return Profile{}, err
		}
		*into = time.Duration(math.Round(ms * float64(time.Millisecond)))
	}
	return p, nil
}
