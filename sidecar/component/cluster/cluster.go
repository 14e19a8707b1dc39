// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package cluster is the right of this conch to change the servers of its release in a cluster: the lease that one conch at a time has. With drivers
// other than kubernetes it is empty.
package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/google/uuid"

	"github.com/conch-serving/conch/sidecar/apply/driver/kubernetes"
	"github.com/conch-serving/conch/sidecar/config"
)

// Cluster is a cluster whose servers this conch leads.
type Cluster struct {
	kubernetes.Connection
	lease *kubernetes.Lease
	lost  chan error
}

// New reaches the cluster and waits until this conch leads its release: the conch before may still work, on the same state.
func New(ctx context.Context, c *config.Config, log *slog.Logger) (*Cluster, error) {
	k := c.Driver.Kubernetes
	connection, err := kubernetes.Connect(k.Kubeconfig, k.Namespace)
	if err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	all := &Cluster{Connection: connection, lost: make(chan error, 1)}
	log.Info("waiting for the lease of the release", "namespace", connection.Namespace, "release", k.Release)
	all.lease, err = kubernetes.Lead(ctx, kubernetes.LeaseOptions{
		Connection: connection, Release: k.Release, Identity: host + "-" + uuid.NewString(), Logger: log,
		Lost: func(leader string) {
			select {
			case all.lost <- fmt.Errorf("another conch, %s, leads release %s by now: this one ends, and leaves the servers to it", leader, k.Release):
			default: // that is known
			}
		},
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// Held is nil while no other conch can lead.
func (c *Cluster) Held() error { return c.lease.Held() }

// Run implements component.Component: it fails once another conch leads.
func (c *Cluster) Run(ctx context.Context) error {
	var err error
	select {
	case <-ctx.Done():
	case err = <-c.lost:
	}
	c.lease.Release()
	return err
}
