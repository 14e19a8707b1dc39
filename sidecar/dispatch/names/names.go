// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package names

import (
	"fmt"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

// Name is something that clients ask for and that models of other names serve: an
// app. It is immutable once it is part of a route table.
type Name struct {
	Name string
	// Config and Versions are what clients receive for it, except for the name in
	// Config: those of a model with the same tensors. Nil: they are not known yet.
	Config   *tritonpb.ModelConfig
	Versions []string
	App      *App
}

// Target is what serves one request.
type Target struct {
	// Model of the route table.
	Model string
	// Wish is what the client asked for beside the name; zero: nothing.
	Wish Wish
	// Answer turns the model's answer into one for the name; nil leaves it as it is.
	Answer func(*batch.Response)
}

// InactiveError means that a model that is not running could serve a request. It may
// run with the next route table.
type InactiveError struct {
	Name, Model string
	Wish        Wish
	// Rows that the request counts as.
	Rows int
}

// Error names both.
func (e *InactiveError) Error() string {
	return fmt.Sprintf("'%s' with %v would be served by '%s', which does not run", e.Name, e.Wish, e.Model)
}

// Set has the resolvers of a route table.
type Set map[string]*Resolver

// New makes the resolvers of the names of a route table. They take over the counted
// load of the table before.
func New(list map[string]*Name, before Set) Set {
	all := make(Set, len(list))
	for key, n := range list {
		a := &Resolver{name: n.Name, chooser: NewChooser(n.App), mostRows: int64(n.Config.GetMaxBatchSize())}
		if old := before[key]; old != nil {
			a.chooser.resume(old.chooser)
		}
		all[key] = a
	}
	return all
}
