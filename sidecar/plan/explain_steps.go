// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/conch-serving/conch/plugins/policy"
)

// Steps is where the time of an ensemble's requests goes whose steps Conch executes, step by step. Times are means in microseconds.
type Steps struct {
	// Requests are those of the last WindowSeconds whose steps all ran; with 0 all but SLOUS is empty.
	Requests      uint64  `json:"requests"`
	WindowSeconds float64 `json:"window_seconds"`
	// LatencyUS is from the arrival of a request to its answer, SLOUS what it may be.
	LatencyUS float64 `json:"latency_us"`
	SLOUS     int64   `json:"slo_us"`
	Steps     []Step  `json:"steps,omitempty"`
	// Critical are the steps that the answer waited for most often, from the first to the last, by their indices.
	Critical []int `json:"critical,omitempty"`
}

// Step is one step of an ensemble.
type Step struct {
	Model string `json:"model"`
	// Ensemble: its model is an ensemble, whose steps are in an explanation of its own.
	Ensemble bool `json:"ensemble,omitempty"`
	// After are the indices of the steps whose results it takes.
	After []int `json:"after,omitempty"`
	// Rows for each row of the request.
	Rows float64 `json:"rows"`
	// QueueUS is the wait in the queue of its model, ExecutionUS the execution, and HandOverUS the way: to the queue from the end of the step before it,
	// and from the server to the steps after it.
	QueueUS     float64 `json:"queue_us"`
	ExecutionUS float64 `json:"execution_us"`
	HandOverUS  float64 `json:"hand_over_us"`
	// CriticalShare is the part of the requests whose answer waited for it.
	CriticalShare float64 `json:"critical_share"`
	// TakenBytes are those that it takes from other steps for each row of the request.
	TakenBytes float64 `json:"taken_bytes"`
}

func (s *Step) sum() float64 { return s.QueueUS + s.ExecutionUS + s.HandOverUS }

// steps of an ensemble; nil: the snapshot has no pipeline of the name.
func steps(s *policy.Snapshot, name string) *Steps {
	p := s.Pipeline(name)
	if p == nil {
		return nil
	}
	out := &Steps{SLOUS: p.GetSloUs(), WindowSeconds: s.GetStatistics().GetWindowSeconds()}
	for _, seen := range s.GetStatistics().GetPipelines() {
		if seen.GetPipeline() != name {
			continue
		}
		out.Requests, out.LatencyUS = seen.GetRequests(), seen.GetLatencyUs()
		for _, step := range seen.GetSteps() {
			one := Step{
				Model: step.GetModel(), Ensemble: s.Pipeline(step.GetModel()) != nil, Rows: step.GetRows(), QueueUS: step.GetQueueUs(), ExecutionUS: step.GetExecutionUs(),
				HandOverUS: step.GetHandOverUs(), CriticalShare: step.GetCriticalShare(), TakenBytes: step.GetTakenBytes(),
			}
			for _, before := range step.GetAfter() {
				one.After = append(one.After, int(before))
			}
			out.Steps = append(out.Steps, one)
		}
	}
	out.Critical = critical(out.Steps)
	return out
}

// critical follows the steps that the answer waited for most often, back from the last one.
func critical(all []Step) (path []int) {
	most := func(among []int) int {
		best := -1
		for _, i := range among {
			if best < 0 || all[i].CriticalShare > all[best].CriticalShare {
				best = i
			}
		}
		return best
	}
	var ends []int
	for i := range all {
		if !slices.ContainsFunc(all, func(s Step) bool { return slices.Contains(s.After, i) }) {
			ends = append(ends, i)
		}
	}
	for at := most(ends); at >= 0; at = most(all[at].After) {
		path = append(path, at)
	}
	slices.Reverse(path)
	return path
}

func (s *Steps) write(b *strings.Builder) {
	if s == nil {
		return
	}
	if s.Requests == 0 {
		fmt.Fprintf(b, "steps: no request has had them all in the last %.4g s\n", s.WindowSeconds)
		return
	}
	fmt.Fprintf(b, "steps, means of %d requests in the last %.4g s: %s from arrival to answer, %.3g%% of the SLO\n", s.Requests, s.WindowSeconds, millis(s.LatencyUS), 100*s.LatencyUS/float64(s.SLOUS))
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "    step\tmodel\tafter\trows\tqueue\texecution\thand-over\tof the SLO\tcritical\tbytes taken")
	for i, step := range s.Steps {
		var after []string
		for _, before := range step.After {
			after = append(after, strconv.Itoa(before+1))
		}
		if len(after) == 0 {
			after = []string{"-"}
		}
		fmt.Fprintf(w, "    %d\t%s\t%s\t%.3g\t%s\t%s\t%s\t%.3g%%\t%.3g%%\t%.6g\n", i+1, step.Model, strings.Join(after, ","), step.Rows,
			millis(step.QueueUS), millis(step.ExecutionUS), millis(step.HandOverUS), 100*step.sum()/float64(s.SLOUS), 100*step.CriticalShare, step.TakenBytes)
	}
	_ = w.Flush() // into memory
	var names []string
	var queue, execution, handOver float64
	for _, i := range s.Critical {
		step := &s.Steps[i]
		names = append(names, fmt.Sprintf("%d %s", i+1, step.Model))
		queue, execution, handOver = queue+step.QueueUS, execution+step.ExecutionUS, handOver+step.HandOverUS
	}
	fmt.Fprintf(b, "critical path: %s: %s in queues, %s of execution, %s of hand-over\n", strings.Join(names, ", "), millis(queue), millis(execution), millis(handOver))
	for _, step := range s.Steps {
		if step.Ensemble {
			fmt.Fprintf(b, "%s is an ensemble; its own steps: tritonctl plan explain %s\n", step.Model, step.Model)
		}
	}
}
