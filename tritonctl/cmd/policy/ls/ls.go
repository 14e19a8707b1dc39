// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package ls is `tritonctl policy ls`.
package ls

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	return factory.Watchable(f, &cobra.Command{
		Use:   "ls",
		Short: "List the policies that this conch can run",
		Args:  cobra.NoArgs,
	}, func([]string) factory.Ask[[]api.Policy] { return (*client.Client).Policies }, func([]string) factory.Live[[]api.Policy] {
		return factory.Live[[]api.Policy]{Topics: []api.Topic{api.TopicEvents}, Basis: func(s client.State) any {
			return factory.LastEvent(s, func(e api.Event) bool { return strings.HasPrefix(string(e.Kind), "policy_") })
		}}
	}, draw)
}

func draw(t *output.Table, policies []api.Policy) {
	t.Row("POLICY", "IN USE", "VERSION", "STATE", "SUMMARY", "LAST ERROR")
	for _, p := range policies {
		inUse := ""
		if p.InUse {
			inUse = "*"
		}
		t.Row(p.Name, inUse, p.Version, p.State, p.Summary, p.LastError)
	}
}
