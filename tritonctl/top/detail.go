// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/tritonctl/conditions"
	"github.com/conch-serving/conch/tritonctl/output"
)

// detail is all that there is to see of one row, as lines: a heading, then names and values. ok is false where the thing is gone.
func detail(s *State, t tab, key string) (heading string, lines []string, ok bool) {
	switch t {
	case models, waiting:
		if i := slices.IndexFunc(s.Models, func(m api.Model) bool { return m.Name == key }); i >= 0 {
			return "model " + key, modelLines(s, s.Models[i]), true
		}
	case gpus:
		for _, g := range s.GPUs {
			if key == "gpu "+g.Key() {
				return "GPU " + nameOf(s, g), gpuLines(g), true
			}
			for _, p := range g.Partitions {
				if key == "partition "+p.ID+" of "+g.Key() {
					return "partition " + p.ID, partitionLines(p), true
				}
			}
		}
	case happened:
		for _, e := range s.Events {
			if key == fmt.Sprintf("%020d", e.ID) {
				return fmt.Sprintf("event %d", e.ID), eventLines(e), true
			}
		}
	}
	return key, nil, false
}

// list collects names and values.
type list []string

func (l *list) add(name, value string) {
	if value != "" && value != "-" {
		for i, part := range strings.Split(strings.TrimRight(value, "\n"), "\n") {
			if i > 0 {
				name = ""
			}
			*l = append(*l, fmt.Sprintf("%-14s %s", name, output.Clean(part)))
		}
	}
}

func (l *list) conditions(all []api.Condition) {
	for _, c := range all {
		holds := "no"
		if c.Holds {
			holds = "yes"
		}
		text := holds + " since " + c.Since.Local().Format(time.DateTime)
		for _, more := range []string{c.Reason, c.Message} {
			if more != "" {
				text += ", " + more
			}
		}
		if c.Attempts > 0 {
			text += fmt.Sprintf(" (%d attempts failed)", c.Attempts)
		}
		l.add(string(c.Type), text)
	}
}

func modelLines(s *State, m api.Model) []string {
	var l list
	l.add("state", strings.TrimSuffix(string(m.State)+": "+m.StateReason, ": "))
	l.add("traffic", fmt.Sprintf("%s req/s, %s good, %s bad, burstiness %s", decimal(m.Rate), decimal(m.Goodput), percent(m.BadRate), decimal(m.Burstiness)))
	l.add("latency", fmt.Sprintf("p50 %s, p99 %s, SLO %s (late requests: %s)", milliseconds(m.LatencyP50Seconds), milliseconds(m.LatencyP99Seconds), milliseconds(m.SLOSeconds), m.Late))
	r := requestsOf(s, m.Name)
	l.add("in time", inTime(r))
	drawn := lastHour(s, m.Name, hour)
	if drawn != "unknown" {
		drawn += "\n" + hourLegend
	}
	l.add("minutes", drawn)
	l.add("otherwise", outcomes(r.Now))
	l.add("time spent", spent(r.Now.Spent))
	l.add("waiting", waits(waitingFor(s, m.Name)))
	l.add("batches", fmt.Sprintf("%s rows on average, %d at the most, discipline %s", decimal(m.MeanBatch), m.MaxBatchSize, m.Discipline))
	l.add("not batched", m.PassThroughReason)
	if m.EnsembleSteps > 0 {
		l.add("ensemble", fmt.Sprintf("conch executes its %d steps, each batched with its model's other requests", m.EnsembleSteps))
	}
	l.add("partitions", strings.Join(m.Partitions, " "))
	l.add("versions", strings.Join(m.Versions, " "))
	l.add("revision", m.Revision[:min(12, len(m.Revision))])
	l.add("backend", m.Backend)
	l.conditions(m.Conditions)
	l = append(l, "", "tritonctl plan explain "+output.Clean(m.Name)+" says why it is where it is, model get its profiles.")
	return l
}

// inTime is the attainment of the SLO, now and over the last hour.
func inTime(r api.ModelRequests) string {
	var parts []string
	for _, a := range []api.Attainment{r.Now, r.Hour} {
		if a.Requests > 0 {
			of := "%s of %d in %s"
			if len(parts) == 0 {
				of = "%s of %d requests in %s"
			}
			parts = append(parts, fmt.Sprintf(of, attained(a), a.Requests, span(a.Seconds)))
		}
	}
	return strings.Join(parts, ", ")
}

// attained is the share in time. It is rounded down, as the console does, so that only all is 100%.
func attained(a api.Attainment) string {
	p := 100 * float64(a.InTime) / float64(a.Requests)
	switch {
	case p >= 100 || p == 0:
		return fmt.Sprintf("%.0f%%", p)
	case p >= 10 && p < 99:
		return fmt.Sprintf("%.1f%%", math.Floor(10*p+1e-9)/10)
	}
	return fmt.Sprintf("%.2f%%", math.Floor(100*p+1e-9)/100)
}

// span is a time in its largest unit that is not too coarse.
func span(seconds float64) string {
	switch {
	case seconds >= 3600:
		return fmt.Sprintf("%.0f h", seconds/3600)
	case seconds >= 120:
		return fmt.Sprintf("%.0f min", seconds/60)
	}
	return fmt.Sprintf("%.0f s", seconds)
}

// outcomes are the requests that were not answered in time, by result and reason.
func outcomes(a api.Attainment) string {
	var parts []string
	for _, o := range a.Outcomes {
		parts = append(parts, strings.TrimSpace(fmt.Sprintf("%d %s %s", o.Count, o.Result, o.Reason)))
	}
	return strings.Join(parts, ", ")
}

// spent is where requests spend their time.
func spent(s *api.Spent) string {
	if s == nil {
		return ""
	}
	return fmt.Sprintf("%s wait for a GPU, %s gather, %s execute, %s Conch", milliseconds(s.Wait), milliseconds(s.Gather), milliseconds(s.Execute), milliseconds(s.Conch))
}

func waits(w api.ModelWaiting) string {
	if w.Requests == 0 {
		return "0"
	}
	return fmt.Sprintf("%d, the oldest for %s; %s, slack %s", w.Requests, milliseconds(w.OldestSeconds), candidate(w), slack(w).text)
}

func gpuLines(g api.GPU) []string {
	var l list
	l.add("node", g.Node)
	l.add("type", g.Type)
	l.add("memory", gib(g.MemoryBytes))
	l.add("memory in use", map[bool]string{true: "unknown: the GPU is emulated", false: "unknown: Conch does not measure it"}[g.Emulated])
	l.add("shares", map[bool]string{true: "enforced by MPS", false: "not enforced"}[g.SharesEnforced])
	if g.Emulated {
		l.add("emulated", "yes")
	}
	if c := g.Cordon; c != nil {
		l.add("cordon", strings.TrimSuffix(fmt.Sprintf("by %s since %s: %s", c.Author, c.Since.Local().Format(time.DateTime), c.Reason), ": "))
	}
	l.add("unavailable", g.Unavailable)
	for _, p := range g.Partitions {
		l = append(l, "", "partition "+output.Clean(p.ID))
		l = append(l, partitionLines(p)...)
	}
	return l
}

func partitionLines(p api.Partition) []string {
	var l list
	l.add("share", fmt.Sprintf("%s of %s, rank %d", conditions.Share(p), p.GPU, p.Rank))
	l.add("not enforced", p.ShareReason)
	l.add("busy", whole(p.BusyShare))
	up := "up"
	if !p.Up {
		up = strings.TrimSuffix("down: "+p.Reason, ": ")
	}
	l.add("server", up)
	l.add("models", strings.Join(p.Models, " "))
	l.add("serving", strings.Join(p.Serving, " "))
	l.add("memory limit", gib(p.MemoryLimitBytes))
	l.add("gRPC", p.GRPC)
	l.add("log", p.Log)
	if p.Restarts > 0 {
		l.add("restarts", fmt.Sprint(p.Restarts))
	}
	l.conditions(p.Conditions)
	return l
}

func eventLines(e api.Event) []string {
	var l list
	l.add("time", e.Time.Local().Format(time.DateTime))
	l.add("kind", string(e.Kind))
	l.add("by", e.Author)
	l.add("reason", e.Reason)
	l.add("what", e.Message)
	if e.Seconds > 0 {
		l.add("took", fmt.Sprintf("%.2f s", e.Seconds))
	}
	for _, name := range slices.Sorted(maps.Keys(e.Fields)) {
		l.add(name, e.Fields[name])
	}
	return l
}

func gib(n uint64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}
