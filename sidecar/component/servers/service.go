// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package servers

import (
	"context"
	"errors"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/apply/driver/kubernetes"
	"github.com/conch-serving/conch/sidecar/component/machine"
	"github.com/conch-serving/conch/sidecar/config"
)

// behindService makes the servers of driver attach that a Service of a cluster names. The GPU that stands for each has the name of its Pod.
func behindService(ctx context.Context, o Options) (*Servers, error) {
	of, log := o.Config.Driver.Service, o.Log.With("part", "driver")
	connection, err := kubernetes.Connect("driver.service.kubeconfig", of.Kubeconfig, of.Namespace)
	if err != nil {
		return nil, err
	}
	others, err := attach(o.Config, o.Node, o.Store, o.Credentials, o.Log)
	if err != nil {
		return nil, err
	}
	service, err := kubernetes.FollowService(ctx, kubernetes.ServiceOptions{
		Connection: connection, Name: of.Name, Selector: of.Selector, Logger: log,
		Changed: func(servers []kubernetes.Address) {
			all := make([]driver.AttachEndpoint, len(servers))
			for i, s := range servers {
				all[i] = driver.AttachEndpoint{GPU: s.Name, Endpoint: s.Endpoint, Executions: of.Executions}
			}
			log.Info("the servers behind the Service", "servers", len(all))
			if err := others.Driver.Set(all); err != nil {
				log.Warn("a server behind the Service is left out", "error", err)
			}
		},
	})
	if err != nil {
		return nil, errors.Join(err, others.Driver.Close())
	}
	nodes := func() []*policy.Node { return []*policy.Node{standing(o.Config, o.Node, others.Driver.Known())} }
	return &Servers{Driver: others.Driver, Others: others, Nodes: nodes, service: service}, nil
}

// standing is a node with a GPU for each server.
func standing(c *config.Config, node *policy.Node, servers []driver.EndpointState) *policy.Node {
	n := proto.CloneOf(node)
	n.Gpus = nil
	for i, s := range servers {
		g := machine.Device(c, 0)
		g.Id, g.Index = s.GPU, uint32(i)
		n.Gpus = append(n.Gpus, g)
	}
	return executing(n, servers)
}
