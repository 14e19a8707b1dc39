// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package get is `tritonctl model get`.
package get

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/conditions"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	return factory.Watchable(f, &cobra.Command{
		Use:               "get MODEL",
		Short:             "Show one model with its conditions and profiles",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: factory.ModelNames(f),
	}, func(args []string) factory.Ask[api.Model] {
		return func(conch *client.Client, ctx context.Context) (api.Model, error) { return conch.Model(ctx, args[0]) }
	}, func(args []string) factory.Live[api.Model] {
		// The stream has no profiles; they are learnt from the executions that change the rest.
		return factory.Live[api.Model]{Topics: []api.Topic{api.TopicModels}, Basis: func(s client.State) any {
			i := slices.IndexFunc(s.Models, func(m api.Model) bool { return m.Name == args[0] })
			if i < 0 {
				return nil
			}
			return s.Models[i]
		}}
	}, draw)
}

func draw(t *output.Table, m api.Model) {
	t.Row("model", m.Name)
	t.Row("state", strings.TrimSpace(string(m.State)+" "+m.StateReason))
	t.Row("versions", strings.Join(m.Versions, ", "))
	t.Row("backend", m.Backend)
	t.Row("SLO", output.Milliseconds(m.SLOSeconds))
	t.Row("late requests", m.Late)
	t.Row("max batch size", m.MaxBatchSize)
	switch {
	case m.Batchable:
		t.Row("discipline", m.Discipline)
	case m.EnsembleSteps > 0:
		t.Row("ensemble", "conch executes its "+strconv.Itoa(m.EnsembleSteps)+" steps, each batched with its model's other requests")
	default:
		t.Row("passed through", m.PassThroughReason)
	}
	drawPolicy(t, m.QueuePolicy)
	t.Row("partitions", strings.Join(m.Partitions, ", "))
	t.Row("rate", output.Number(m.Rate)+" req/s, burstiness "+output.Number(m.Burstiness))
	t.Row("goodput", output.Number(m.Goodput)+" req/s, bad "+output.Percent(m.BadRate))
	latency := "" // until a request was answered
	if m.LatencyP99Seconds > 0 {
		latency = "p50 " + output.Milliseconds(m.LatencyP50Seconds) + ", p99 " + output.Milliseconds(m.LatencyP99Seconds)
	}
	t.Row("latency", latency)
	t.Row("mean batch", output.Mean(m.MeanBatch))
	conditions.Draw(t, m.Conditions)
	for _, p := range m.Profiles {
		state := "usable"
		if !p.Usable {
			state = "still being learnt: requests are forwarded at once"
		}
		if p.Interfered {
			state += ", interfered"
		}
		t.Line("profile on " + p.GPUType + ": " + p.Source + ", " + state)
		t.Row("  BATCH", "SHARE", "LATENCY", "+-", "UPPER", "SEEN")
		for _, q := range p.Points {
			t.Row("  "+strconv.Itoa(q.Batch), strconv.Itoa(q.ThreadPercentage)+"%", output.Milliseconds(q.LatencySeconds),
				output.Milliseconds(q.ErrorBoundSeconds), output.Milliseconds(q.LatencyUpperSeconds), q.Observations)
		}
	}
	for _, e := range m.Estimates {
		drawEstimate(t, e)
	}
}

// drawEstimate shows an estimate at the whole GPU; the other shares are in -o json.
func drawEstimate(t *output.Table, e api.Estimate) {
	if e.Reason != "" {
		t.Line("estimate on " + e.GPUType + ": none, " + e.Reason)
		return
	}
	t.Line("estimate on " + e.GPUType + ": nine of ten are within " + output.Percent(e.RelativeBound) + " (" + e.Basis + ")")
	fits := "fits "
	if !e.Fits {
		fits = "DOES NOT FIT "
	}
	total := e.ParameterBytes + e.ActivationBytes + e.WorkspaceBytes + e.ArenaBytes + e.ContextBytes
	t.Line("  memory at the largest batch: " + output.Bytes(uint64(total)) + " = " + output.Bytes(uint64(e.ParameterBytes)) + " weights + " +
		output.Bytes(uint64(e.ActivationBytes)) + " activations + " + output.Bytes(uint64(e.WorkspaceBytes)) + " workspace + " + output.Bytes(uint64(e.ArenaBytes)) + " arena + " +
		output.Bytes(uint64(e.ContextBytes)) + " context; " + fits + output.Bytes(uint64(e.GPUMemoryBytes)))
	if len(e.Points) > 0 {
		t.Row("  BATCH", "SHARE", "LATENCY", "+-", "CREQ", "MREQ", "BANDWIDTH", "L2")
		whole := e.Points[len(e.Points)-1].ThreadPercentage
		for _, p := range e.Points {
			if p.ThreadPercentage == whole {
				t.Row("  "+strconv.Itoa(p.Batch), strconv.Itoa(p.ThreadPercentage)+"%", output.Milliseconds(p.LatencySeconds), output.Milliseconds(p.ErrorBoundSeconds),
					output.Percent(p.Creq), output.Percent(p.Mreq), output.Percent(p.BandwidthUtilization), output.Percent(p.L2Utilization))
			}
		}
	}
	for _, w := range e.Warnings {
		t.Line("  " + w)
	}
}
