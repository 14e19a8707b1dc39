// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/names"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// variants serves the app "a" with the variants "cheap" and "best", of which those named run.
func variants(revision uint64, running ...string) *router.Table {
	t := &router.Table{Revision: revision, Models: map[string]*router.Model{}}
	app := &names.App{Variants: []names.Variant{{Model: "cheap", Accuracy: .5}, {Model: "good", Accuracy: .8}, {Model: "best", Accuracy: .9}}}
	for i := range app.Variants {
		for _, name := range running {
			if app.Variants[i].Model == name {
				app.Variants[i].State = names.Active
				t.Models[name] = &router.Model{Name: name, Config: &tritonpb.ModelConfig{Name: name}, Versions: []string{"1"}}
			}
		}
	}
	t.Names = map[string]*names.Name{"a": {Name: "a", App: app}}
	return t
}

// TestElsewhere: a call whose variant has left the table goes to another variant that meets its wish. An abandoned call stays with the model that
// counts it. The moment between resolving and queueing is too short for a test from outside.
func TestElsewhere(t *testing.T) {
	for name, gone := range map[string]bool{"its caller waits": false, "its caller has gone": true} {
		t.Run(name, func(t *testing.T) {
			d := New(Options{})
			defer func() { require.NoError(t, d.Close()) }()
			require.NoError(t, d.Swap(t.Context(), variants(1, "cheap", "good", "best")))
			r := &batch.Request{Model: "a", Parameters: []batch.Parameter{batch.StringParameter("accuracy", "0.7"), batch.StringParameter("other", "x")}}
			c := d.newCall(t.Context(), r)
			route := d.look(r, &c.asked).route
			require.Equal(t, "good", route.name)
			d.arrive(c, route)
			next := variants(2, "cheap", "good", "best")
			delete(next.Models, "good")
			next.Names["a"].App.Variants[1].State = names.Inactive
			require.NoError(t, d.Swap(t.Context(), next))
			from := c.model
			if gone {
				c.phase.Store(left)
				require.Nil(t, d.elsewhere(c))
				require.Equal(t, "good", c.req.Model)
				require.EqualValues(t, 1, from.counts.underWay.Load())
				return
			}
			require.Equal(t, "best", d.elsewhere(c).name, "and not the cheap one")
			require.Equal(t, "best", c.req.Model)
			require.Equal(t, []batch.Parameter{batch.StringParameter("other", "x")}, c.req.Parameters)
			require.Zero(t, from.counts.underWay.Load())
			require.EqualValues(t, 1, c.model.counts.underWay.Load())
		})
	}
}
