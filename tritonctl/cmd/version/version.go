// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package version is `tritonctl version`.
package version

import (
	"context"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// Options are the command's inputs.
type Options struct {
	*factory.Factory
	own bool
}

// Versions is what the command prints.
type Versions struct {
	Client api.Version  `json:"client"`
	Server *api.Version `json:"server,omitempty"`
}

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	o := &Options{Factory: f}
	c := &cobra.Command{
		Use:   "version",
		Short: "Show the versions of tritonctl and conch",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, args []string) error {
			return o.run(c.Context())
		},
	}
	c.Flags().BoolVar(&o.own, "client", false, "tritonctl's own version only")
	return c
}

func (o *Options) run(ctx context.Context) error {
	v := Versions{Client: own()}
	if !o.own {
		conch, err := o.Client()
		if err != nil {
			return err
		}
		server, err := conch.Version(ctx)
		if err != nil {
			return err
		}
		v.Server = &server
	}
	return o.Print(v, func(t *output.Table) {
		t.Row("tritonctl", v.Client.Version, v.Client.Commit, v.Client.Go)
		if v.Server != nil {
			driver := "driver " + v.Server.Driver
			if v.Server.Replica != "" {
				driver += ", replica " + v.Server.Replica
			}
			t.Row("conch", v.Server.Version, v.Server.Commit, v.Server.Go, "mode "+v.Server.Mode, driver)
		}
	})
}

func own() api.Version {
	v := api.Version{Version: "devel", Commit: "unknown", Go: runtime.Version()} // as conch says it
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" && info.Main.Version != "(devel)" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v.Commit = s.Value
		}
	}
	return v
}
