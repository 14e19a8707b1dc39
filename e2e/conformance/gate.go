// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
)

// gate keeps the executions of a model from ending: what a case sends meanwhile comes when the target is busy, by construction and however
// busy the machine is.
type gate struct {
	e          *Env
	model, dir string
}

// close closes the gate of a model until it is opened or the case ends. Executions that begin while it is closed wait in it.
func (e *Env) close(model string) *gate {
	e.Helper()
	g := &gate{e: e, model: model, dir: filepath.Join(e.Target.Gates, model)}
	require.NotEmpty(e, e.Target.Gates, "the target says where its models have their gates")
	require.NoError(e, os.MkdirAll(g.dir, 0o755))
	require.NoError(e, os.WriteFile(g.closed(), nil, 0o600))
	e.Cleanup(func() {
		g.pass()
		g.open()
	})
	return g
}

func (g *gate) closed() string { return filepath.Join(g.dir, "closed") }

// begun are the executions that wait in the gate, each a file.
func (g *gate) begun() []string {
	g.e.Helper()
	files, err := filepath.Glob(filepath.Join(g.dir, "begun-*"))
	require.NoError(g.e, err)
	return files
}

// executes waits until n executions wait in the gate.
func (g *gate) executes(n int) {
	g.e.Helper()
	g.e.until(func() bool { return len(g.begun()) == n }, 2*time.Millisecond, "%d executions of %s wait in the gate", n, g.model)
}

// holds waits until the target has n requests: those that wait in the gate, alone in their executions, those in its queue, and those that
// answered says.
func (g *gate) holds(n int, answered func() int) {
	g.e.Helper()
	g.e.until(func() bool { return len(g.begun())+g.e.waiting(g.model)+answered() == n }, 2*time.Millisecond,
		"the target holds %d requests of %s", n, g.model)
}

// pass lets executions begin and end that come from now on.
func (g *gate) pass() { _ = os.Remove(g.closed()) } // it may be open

// open lets executions go on, those that wait too.
func (g *gate) open() {
	g.pass()
	g.release(g.begun())
}

// release lets these executions go on.
func (g *gate) release(begun []string) {
	for _, file := range begun {
		_ = os.Remove(file) // only this removes it, but the case may have ended
	}
}

// none is no answer yet.
func none() int { return 0 }

// waiting is how many requests of a model wait for an execution, by the target's metrics.
func (e *Env) waiting(of string) (n int) {
	e.Helper()
	address := e.Target.Pending
	if address == "" {
		address = e.Target.Metrics
	}
	r := e.fetch(http.MethodGet, address, "/metrics", "")
	require.Equal(e, http.StatusOK, r.status)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(r.body))
	require.NoError(e, err)
	for _, m := range families["nv_inference_pending_request_count"].GetMetric() {
		for _, l := range m.Label {
			if l.GetName() == "model" && l.GetValue() == of {
				n += int(m.GetGauge().GetValue())
			}
		}
	}
	return n
}

// later runs f meanwhile. The channel has what came out of it, or nothing if it failed the case.
func later[T any](f func() T) <-chan T {
	c := make(chan T, 1)
	go func() {
		defer close(c)
		c <- f()
	}()
	return c
}
