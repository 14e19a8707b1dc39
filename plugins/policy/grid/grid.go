// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package grid reads and writes profiles as files: l(b, p) of a model on a grid of
// batches and thread percentages, with what else is known of each point. The same
// file is what an operator declares (models.NAME.profiles in conch.yaml, or
// profile.csv and profile.json beside a model's config.pbtxt), what an estimate or a
// calibration writes, and what a policy's author puts in a snapshot.
//
// As CSV a file has one line per point under a header with these names, in any
// order, of which batch, thread_percentage and latency_us are needed:
//
//	model,gpu_type,source,batch,thread_percentage,latency_us,error_bound_us,latency_upper_us,creq,mreq,bandwidth_utilization,l2_utilization
//
// As JSON it is one object, or a list of them:
//
//	{"model": "resnet50", "gpu_type": "A100-80GB", "source": "declared",
//	 "points": [{"batch": 1, "thread_percentage": 100, "latency_us": 5200, "creq": 0.31}]}
//
// Latencies are microseconds; error_bound_us is the half width of the 95% interval;
// latency_upper_us, the quantile that deadlines are planned with, is the latency and
// its bound where it is absent. Creq, mreq and the utilisations are fractions of the
// GPU; absent or 0 means that they are not known. Source is declared, estimated,
// calibrated or observed; absent: declared. A file without gpu_type holds for every
// type, one without model for the model that it belongs to.
package grid

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/conch-serving/conch/plugins/policy"
)

// Profile is one model on one GPU type.
type Profile struct {
	// Model is empty where the file does not say: it is the model that the file
	// belongs to.
	Model string `json:"model,omitempty"`
	// GPUType is empty for every type.
	GPUType string `json:"gpu_type,omitempty"`
	// Source is declared, estimated, calibrated or observed.
	Source string `json:"source,omitempty"`
	// Points are sorted by thread percentage, then by batch.
	Points []Point `json:"points"`
}

// Point is one batch at one share.
type Point struct {
	Batch                uint32  `json:"batch"`
	ThreadPercentage     uint32  `json:"thread_percentage"`
	LatencyUS            float64 `json:"latency_us"`
	ErrorBoundUS         float64 `json:"error_bound_us,omitempty"`
	LatencyUpperUS       float64 `json:"latency_upper_us,omitempty"`
	Creq                 float64 `json:"creq,omitempty"`
	Mreq                 float64 `json:"mreq,omitempty"`
	BandwidthUtilization float64 `json:"bandwidth_utilization,omitempty"`
	L2Utilization        float64 `json:"l2_utilization,omitempty"`
}

// ErrFormat is wrapped by every complaint about a file.
var ErrFormat = errors.New("profile file")

// Sources that a file may name.
const (
	Declared   = "declared"
	Estimated  = "estimated"
	Calibrated = "calibrated"
	Observed   = "observed"
)

// MaxBytes bounds a file: a hundred thousand points.
const MaxBytes = 16 << 20

// Read reads a file of either form, by its content. Its errors are [ErrFormat] and
// say where in the file the fault is.
func Read(r io.Reader) ([]Profile, error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("%w: it is larger than %d bytes", ErrFormat, MaxBytes)
	}
	var all []Profile
	if trimmed := bytes.TrimSpace(data); len(trimmed) > 0 && (trimmed[0] == '{' || trimmed[0] == '[') {
		all, err = readJSON(trimmed)
	} else {
		all, err = readCSV(data)
	}
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: it holds no points; give at least batch, thread_percentage and latency_us of one", ErrFormat)
	}
	for i := range all {
		if err := all[i].check(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func readJSON(data []byte) ([]Profile, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	var all []Profile
	var err error
	if data[0] == '[' {
		err = d.Decode(&all)
	} else {
		all = make([]Profile, 1)
		err = d.Decode(&all[0])
	}
	if err == nil && d.More() {
		err = errors.New("something follows it")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: JSON: %w", ErrFormat, err)
	}
	return all, nil
}

func columns() []string {
	return []string{
		"model", "gpu_type", "source", "batch", "thread_percentage", "latency_us", "error_bound_us", "latency_upper_us",
		"creq", "mreq", "bandwidth_utilization", "l2_utilization",
	}
}

func readCSV(data []byte) ([]Profile, error) {
	r := csv.NewReader(bytes.NewReader(data))
	r.Comment, r.TrimLeadingSpace = '#', true
	header, err := r.Read()
	if err != nil {
		return nil, fmt.Errorf("%w: CSV: no header: %w", ErrFormat, err)
	}
	at := make(map[string]int)
	for i, name := range header {
		name = strings.TrimSpace(name)
		if !slices.Contains(columns(), name) {
			return nil, fmt.Errorf("%w: CSV: no column is called %q; there are: %s", ErrFormat, name, strings.Join(columns(), ", "))
		}
		if _, twice := at[name]; twice {
			return nil, fmt.Errorf("%w: CSV: column %s is there twice", ErrFormat, name)
		}
		at[name] = i
	}
	for _, name := range []string{"batch", "thread_percentage", "latency_us"} {
		if _, ok := at[name]; !ok {
			return nil, fmt.Errorf("%w: CSV: column %s is missing", ErrFormat, name)
		}
	}
	type key struct{ model, gpuType, source string }
	profiles, order := make(map[key]*Profile), []key{}
	for {
		record, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%w: CSV: %w", ErrFormat, err)
		}
		line, _ := r.FieldPos(0)
		text := func(name string) string {
			if i, ok := at[name]; ok {
				return strings.TrimSpace(record[i])
			}
			return ""
		}
		var q Point
		for name, into := range map[string]*uint32{"batch": &q.Batch, "thread_percentage": &q.ThreadPercentage} {
			v, err := strconv.ParseUint(text(name), 10, 32)
			if err != nil {
				return nil, fmt.Errorf("%w: CSV: line %d: %s %q is no whole number", ErrFormat, line, name, text(name))
			}
			*into = uint32(v)
		}
		for name, into := range map[string]*float64{
			"latency_us": &q.LatencyUS, "error_bound_us": &q.ErrorBoundUS, "latency_upper_us": &q.LatencyUpperUS, "creq": &q.Creq, "mreq": &q.Mreq,
			"bandwidth_utilization": &q.BandwidthUtilization, "l2_utilization": &q.L2Utilization,
		} {
			if text(name) == "" {
				continue
			}
			if *into, err = strconv.ParseFloat(text(name), 64); err != nil {
				return nil, fmt.Errorf("%w: CSV: line %d: %s %q is no number", ErrFormat, line, name, text(name))
			}
		}
		k := key{text("model"), text("gpu_type"), text("source")}
		if profiles[k] == nil {
			profiles[k] = &Profile{Model: k.model, GPUType: k.gpuType, Source: k.source}
			order = append(order, k)
		}
		profiles[k].Points = append(profiles[k].Points, q)
	}
	all := make([]Profile, 0, len(order))
	for _, k := range order {
		all = append(all, *profiles[k])
	}
	return all, nil
}

// check rejects what makes no sense, fills in the source, and sorts the points.
func (p *Profile) check() error {
	p.Source = cmp.Or(p.Source, Declared)
	if !slices.Contains([]string{Declared, Estimated, Calibrated, Observed}, p.Source) {
		return fmt.Errorf("%w: source %q is none of declared, estimated, calibrated, observed", ErrFormat, p.Source)
	}
	if len(p.Points) == 0 {
		return fmt.Errorf("%w: model %q on GPU type %q has no points", ErrFormat, p.Model, p.GPUType)
	}
	slices.SortFunc(p.Points, func(a, b Point) int {
		return cmp.Or(cmp.Compare(a.ThreadPercentage, b.ThreadPercentage), cmp.Compare(a.Batch, b.Batch))
	})
	for i, q := range p.Points {
		fail := func(format string, args ...any) error {
			return fmt.Errorf("%w: model %q on GPU type %q, batch %d at %d%%: %s", ErrFormat, p.Model, p.GPUType, q.Batch, q.ThreadPercentage, fmt.Sprintf(format, args...))
		}
		switch {
		case q.Batch < 1 || q.Batch > 1<<20:
			return fail("a batch is from 1 to %d", 1<<20)
		case q.ThreadPercentage < 1 || q.ThreadPercentage > 100:
			return fail("a thread percentage is from 1 to 100")
		case !(q.LatencyUS > 0) || q.LatencyUS > 1e12:
			return fail("latency_us %v is not above 0 and below 1e12", q.LatencyUS)
		case !(q.ErrorBoundUS >= 0) || math.IsInf(q.ErrorBoundUS, 0):
			return fail("error_bound_us %v is not 0 or more", q.ErrorBoundUS)
		case q.LatencyUpperUS != 0 && !(q.LatencyUpperUS >= q.LatencyUS && q.LatencyUpperUS <= 1e12):
			return fail("latency_upper_us %v is below latency_us", q.LatencyUpperUS)
		case i > 0 && p.Points[i-1].Batch == q.Batch && p.Points[i-1].ThreadPercentage == q.ThreadPercentage:
			return fail("it is there twice")
		}
		for name, v := range map[string]float64{"creq": q.Creq, "mreq": q.Mreq, "bandwidth_utilization": q.BandwidthUtilization, "l2_utilization": q.L2Utilization} {
			if !(v >= 0 && v <= 1.5) {
				return fail("%s %v is no fraction of the GPU", name, v)
			}
		}
	}
	return nil
}

// Write writes profiles as JSON: one as an object, several as a list.
func Write(w io.Writer, all ...Profile) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if len(all) == 1 {
		return e.Encode(all[0])
	}
	return e.Encode(all)
}

// Policy is the profile as a snapshot has it, usable, for a model on a GPU type.
func (p Profile) Policy(model, gpuType string) *policy.Profile {
	sources := map[string]policy.ProfileSource{
		Declared: policy.ProfileSource_PROFILE_SOURCE_DECLARED, Estimated: policy.ProfileSource_PROFILE_SOURCE_ESTIMATED,
		Calibrated: policy.ProfileSource_PROFILE_SOURCE_CALIBRATED, Observed: policy.ProfileSource_PROFILE_SOURCE_OBSERVED,
	}
	out := &policy.Profile{Model: model, GpuType: gpuType, Source: sources[p.Source], Usable: true}
	known := func(v float64) *policy.Estimate {
		if v == 0 {
			return nil
		}
		return &policy.Estimate{Value: v}
	}
	for _, q := range p.Points {
		upper := q.LatencyUpperUS
		if upper == 0 {
			upper = q.LatencyUS + q.ErrorBoundUS
		}
		out.Points = append(out.Points, &policy.ProfilePoint{
			Batch: q.Batch, ThreadPercentage: q.ThreadPercentage,
			LatencyUs: &policy.Estimate{Value: q.LatencyUS, ErrorBound: q.ErrorBoundUS}, LatencyUpperUs: upper,
			Creq: known(q.Creq), Mreq: known(q.Mreq), BandwidthUtilization: known(q.BandwidthUtilization), L2Utilization: known(q.L2Utilization),
		})
	}
	return out
}

// For picks the profile of a model on a GPU type out of a file's: one that names both
// wins over one that leaves either open.
func For(all []Profile, model, gpuType string) (Profile, bool) {
	best, rank := Profile{}, -1
	for _, p := range all {
		if p.Model != "" && p.Model != model || p.GPUType != "" && p.GPUType != gpuType {
			continue
		}
		r := 0
		if p.Model != "" {
			r += 2
		}
		if p.GPUType != "" {
			r++
		}
		if r > rank {
			best, rank = p, r
		}
	}
	return best, rank >= 0
}
