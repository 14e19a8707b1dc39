// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/conch-serving/conch/plugins/policy"
)

// Text is the diff as a person reads it, stable to the byte: partitions in the
// order of the plan, "+" what starts, "~" what changes, "-" what ends. What
// nothing happens to is left out.
func (d *Diff) Text() string {
	var b strings.Builder
	if d.Empty() {
		fmt.Fprintf(&b, "snapshot %d -> %d: no changes\n", d.From, d.To)
		return b.String()
	}
	fmt.Fprintf(&b, "snapshot %d -> %d: %s\n", d.From, d.To, d.Summary())
	for _, p := range d.Start {
		fmt.Fprintf(&b, "+ %s: %s, rank %d%s\n", p.GetId(), processText(p), p.GetRank(), d.breakText(p, ""))
		d.instances(&b, p)
	}
	for _, r := range d.Replace {
		fmt.Fprintf(&b, "~ %s: %s -> %s, rank %d%s\n",
			r.New.GetId(), processText(r.Old), processText(r.New), r.New.GetRank(), d.breakText(r.New, " (start the new process, then drain and stop the old one)"))
		d.instances(&b, r.New)
	}
	for _, k := range d.Keep {
		var kept strings.Builder
		d.instances(&kept, k.New)
		rank := ""
		if k.Old.GetRank() != k.New.GetRank() {
			rank = fmt.Sprintf(", rank %d -> %d", k.Old.GetRank(), k.New.GetRank())
		}
		if kept.Len() > 0 || rank != "" {
			fmt.Fprintf(&b, "  %s: %s%s\n%s", k.New.GetId(), processText(k.New), rank, kept.String())
		}
	}
	for _, p := range d.Stop {
		fmt.Fprintf(&b, "- %s: %s (drain, then stop)\n", p.GetId(), processText(p))
		for _, in := range p.GetInstances() {
			fmt.Fprintf(&b, "    - %s\n", in.GetModel())
		}
	}
	if len(d.Dispatch) > 0 {
		b.WriteString("dispatch\n")
	}
	for _, c := range d.Dispatch {
		b.WriteString("  " + change(c.Model, c.Old != nil, c.New != nil, dispatchText(c.Old), dispatchText(c.New)))
	}
	if len(d.AppRoutes) > 0 {
		b.WriteString("apps\n")
	}
	for _, c := range d.AppRoutes {
		b.WriteString("  " + change(c.App, c.Old != nil, c.New != nil, routeText(c.Old), routeText(c.New)))
	}
	return b.String()
}

// breakText says of a partition whose old server goes first whose requests wait;
// else it is usual.
func (d *Diff) breakText(p *policy.Partition, usual string) string {
	if !slices.Contains(d.BreakFirst, p.GetId()) {
		return usual
	}
	text := " (there is no room for both: drain and stop the old process, then start this one"
	if waiting := d.waiting(p); len(waiting) > 0 {
		text += "; requests for " + strings.Join(waiting, ", ") + " wait meanwhile"
	}
	return text + ")"
}

// waiting are the models of a partition that serve nowhere else while it starts.
func (d *Diff) waiting(p *policy.Partition) (models []string) {
	for _, in := range p.GetInstances() {
		if !slices.ContainsFunc(d.Keep, func(k Kept) bool { return k.Old.Has(in.GetModel()) && k.New.Has(in.GetModel()) }) {
			models = append(models, in.GetModel())
		}
	}
	return models
}

// Summary counts the changes in one line.
func (d *Diff) Summary() string {
	var parts []string
	for _, c := range []struct {
		count int
		text  string
	}{
		{len(d.Start), "to start"},
		{len(d.Replace), "to replace"},
		{len(d.Stop), "to stop"},
		{len(d.Loads), "to load"},
		{len(d.Unloads), "to unload"},
		{len(d.Updates), "to update"},
	} {
		if c.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", c.count, c.text))
		}
	}
	if len(parts) == 0 {
		if d.Empty() {
			return "no changes"
		}
		return "routes only"
	}
	return strings.Join(parts, ", ")
}

// instances writes what happens to the instances of a partition of the next
// plan.
func (d *Diff) instances(b *strings.Builder, p *policy.Partition) {
	for _, l := range d.Loads {
		if l.Partition == p {
			fmt.Fprintf(b, "    + %s%s\n", l.Instance.GetModel(), instanceText(l.Instance))
		}
	}
	for _, u := range d.Updates {
		if u.Partition != p {
			continue
		}
		was, is, how := instanceText(u.Old), instanceText(u.New), ""
		if was != is {
			how = was + " ->" + strings.TrimPrefix(is, ",")
		}
		if u.Reload {
			how += " (load again)"
		}
		fmt.Fprintf(b, "    ~ %s%s\n", u.New.GetModel(), how)
	}
	for _, l := range d.Unloads {
		if l.Partition == p {
			fmt.Fprintf(b, "    - %s\n", l.Instance.GetModel())
		}
	}
}

func change(name string, had, has bool, was, is string) string {
	switch {
	case !had:
		return fmt.Sprintf("+ %s: %s\n", name, is)
	case !has:
		return fmt.Sprintf("- %s: %s\n", name, was)
	}
	return fmt.Sprintf("~ %s: %s -> %s\n", name, was, is)
}

func processText(p *policy.Partition) string {
	text := fmt.Sprintf("%d%% of %s", p.GetThreadPercentage(), p.Hosts())
	if p.GetNode() != "" {
		text += " on " + p.GetNode()
	}
	if p.GetMemoryLimitBytes() > 0 {
		text += ", at most " + sizeText(p.GetMemoryLimitBytes())
	}
	return text
}

func instanceText(in *policy.Instance) string {
	text := ", the model's own batch"
	if in.GetMaxBatch() > 0 {
		text = fmt.Sprintf(", batch up to %d", in.GetMaxBatch())
	}
	if in.GetThreadPercentage() > 0 {
		text += fmt.Sprintf(", %d%%", in.GetThreadPercentage())
	}
	if in.GetRate() > 0 {
		text += fmt.Sprintf(", for %.4g rows/s", in.GetRate())
	}
	return text
}

// routeText is the variants of a route with their parts of the requests.
func routeText(r *policy.AppRoute) string {
	total := 0.0
	for _, v := range r.GetVariants() {
		total += v.GetWeight()
	}
	parts := make([]string, 0, len(r.GetVariants()))
	for _, v := range r.GetVariants() {
		if total > 0 {
			parts = append(parts, fmt.Sprintf("%s %.0f%%", v.GetModel(), 100*v.GetWeight()/total))
		} else {
			parts = append(parts, v.GetModel())
		}
	}
	return strings.Join(parts, ", ")
}

func dispatchText(d *policy.Dispatch) string {
	parts := []string{d.GetDiscipline()}
	if d.GetDropPolicy() != "" {
		parts = append(parts, "drop "+d.GetDropPolicy())
	}
	for _, name := range slices.Sorted(maps.Keys(d.GetParameters())) {
		parts = append(parts, name+"="+d.GetParameters()[name])
	}
	return strings.Join(parts, ", ")
}

// sizeText is a size in binary units with three digits.
func sizeText(bytes uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	size, unit := float64(bytes), 0
	for size >= 1024 && unit < len(units)-1 {
		size, unit = size/1024, unit+1
	}
	return fmt.Sprintf("%.4g %s", size, units[unit])
}
