// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package servers

import (
	"log/slog"
	"path/filepath"

	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/apply/attached"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/config"
)

// Others are the servers that others run, put together: the driver that reaches
// them, the catalogue of what they serve, and the guard of their repositories (nil
// where conch writes none).
type Others struct {
	Driver    *driver.Attached
	Catalogue *attached.Catalogue
	Files     *attached.Files
}

// attach makes the servers of driver attach. GPUs stand for their devices, one
// each, in their order.
func attach(c *config.Config, node *policy.Node, store *repo.Store, how credentials.TransportCredentials, log *slog.Logger) (*Others, error) {
	endpoints := []driver.AttachEndpoint{}
	var dirs []string
	for i, e := range c.Driver.Endpoints {
		endpoints = append(endpoints, driver.AttachEndpoint{
			GPU: node.GetGpus()[i].GetId(), Repository: e.Repository, Executions: e.Executions,
			Endpoint: driver.Endpoint{GRPC: e.GRPC, HTTP: open(e.HTTP), Metrics: open(e.Metrics)},
		})
		if e.Repository != "" {
			dirs = append(dirs, filepath.Clean(e.Repository))
			endpoints[i].Repository = dirs[len(dirs)-1]
		}
	}
	d, err := driver.NewAttached(driver.AttachOptions{
		Endpoints: endpoints, Health: Health(c), Credentials: how, Logger: log.With("part", "driver"),
	})
	if err != nil {
		return nil, err
	}
	s := &Others{Driver: d}
	if len(dirs) > 0 {
		s.Files = attached.NewFiles(store, dirs, d.Reload)
	}
	s.Catalogue = attached.New(node.GetName(), d, s.Files)
	return s, nil
}

// executing is a node of whose GPUs, which stand for the servers in their order, each executes as many batches at once as its server does.
func executing(node *policy.Node, servers []driver.EndpointState) *policy.Node {
	n := proto.CloneOf(node)
	for i, s := range servers {
		n.Gpus[i].Executions = uint32(s.AtOnce) //nolint:gosec // few
	}
	return n
}

// open is an address, or nothing where the door is off.
func open(address string) string {
	if address == config.Off {
		return ""
	}
	return address
}

// Health is how often and how patiently servers are asked for their health.
func Health(c *config.Config) driver.Health {
	return driver.Health{Period: c.Driver.Probe.Period.Std(), Deadline: c.Driver.Probe.Deadline.Std()}
}
