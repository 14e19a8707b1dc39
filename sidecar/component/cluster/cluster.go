// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package cluster is the right of this conch to change the servers of its release in a cluster: the lease that one conch at a time has, and the state
// that its holder writes. Whoever has it not hands clients' requests on to the one that has. With drivers other than kubernetes it is empty.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/conch-serving/conch/sidecar/apply/driver/kubernetes"
	"github.com/conch-serving/conch/sidecar/apply/driver/kubernetes/configmaps"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/handon"
)

// Cluster is a cluster whose servers this conch leads.
type Cluster struct {
	kubernetes.Connection
	// Store keeps the release's state, for whichever conch leads; Files, a directory of the volume that every conch of the release mounts, has the content of models.
	Store *configmaps.Store
	Files string
	name  string
	lease *kubernetes.Lease
	// front hands requests on for as long as another conch leads; nil where none are.
	front *handon.Front
	drain time.Duration
	lost  chan error
	log   *slog.Logger
}

// ErrStopped says that conch was asked to stop before it led.
var ErrStopped = errors.New("stopped before this conch led its release")

// New reaches the cluster, waits until this conch leads its release, since the conch before may still work, and takes over the release's state. While
// it waits, it hands clients' requests on to the conch that leads. Connections bounds those of clients.
func New(ctx context.Context, c *config.Config, connections int, log *slog.Logger) (*Cluster, error) {
	k := c.Driver.Kubernetes
	connection, err := kubernetes.Connect("driver.kubernetes.kubeconfig", k.Kubeconfig, k.Namespace)
	if err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	all := &Cluster{Connection: connection, Files: filepath.Join(k.Models.Path, "content"), lost: make(chan error, 1), name: host, drain: c.Limits.Drain.Std(), log: log}
	if err := all.lead(ctx, c, host, connections); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", ErrStopped, err)
		}
		return nil, errors.Join(err, all.HandedOn())
	}
	return all, nil
}

// lead waits for the lease.
func (all *Cluster) lead(ctx context.Context, c *config.Config, host string, connections int) (err error) {
	k := c.Driver.Kubernetes
	self := kubernetes.Replica{Name: host, ID: uuid.NewString()}
	if all.front, err = handOn(c, host, connections, all.log); err != nil {
		return err
	}
	if all.front != nil {
		local, err := all.LocalAddress(ctx)
		if err != nil {
			return err
		}
		self.GRPC, self.HTTP = reached(all.front.Address("grpc"), local), reached(all.front.Address("http"), local)
	}
	all.log.Info("waiting for the lease of the release", "namespace", all.Namespace, "release", k.Release)
	all.lease, err = kubernetes.Lead(ctx, kubernetes.LeaseOptions{
		Connection: all.Connection, Release: k.Release, Identity: self.String(), Duration: k.Lease.Std(), Logger: all.log,
		Leads: func(identity string) {
			if r := kubernetes.ParseReplica(identity); all.front != nil {
				all.front.Follow(handon.Owner{Name: r.Name, GRPC: r.GRPC, HTTP: r.HTTP})
			}
		},
		Lost: func(leader string) {
			select {
			case all.lost <- fmt.Errorf("another conch, %s, leads release %s by now: this one ends, and leaves the servers to it", kubernetes.ParseReplica(leader).Name, k.Release):
			default: // that is known
			}
		},
	})
	if err != nil {
		return err
	}
	owner, err := all.OwnedBy(ctx, k.Owner)
	if err == nil {
		all.Store, err = configmaps.Open(ctx, configmaps.Options{
			Connection: all.Connection, Release: k.Release, Identity: self.String(), Owner: owner, Fence: all.lease.Held, Logger: all.log,
		})
	}
	if err != nil {
		all.lease.Release()
	}
	return err
}

// handOn opens the doors of a conch that does not lead; nil where they stay shut until it does, since it could not reach the one that leads, or
// shares its addresses with others.
func handOn(c *config.Config, name string, connections int, log *slog.Logger) (*handon.Front, error) {
	if c.Listen.TLS.Enabled() || c.Listen.ReusePort {
		log.Info("while another conch leads, this one opens no doors: with listen.tls or listen.reusePort requests are not handed on")
		return nil, nil //nolint:nilnil // nothing is handed on
	}
	address := func(a string) string {
		if a == config.Off {
			return ""
		}
		return a
	}
	return handon.New(handon.Options{
		Name: name, GRPC: address(c.Listen.GRPC), HTTP: address(c.Listen.HTTP), Metrics: address(c.Listen.Metrics),
		Requests: c.Limits.QueueRequests, Bytes: int64(c.Limits.QueueBytes), Connections: connections, Stall: c.Limits.Stall.Std(),
		MessageBytes: int(min(uint64(c.Limits.MessageBytes), math.MaxInt32)), Logger: log.With("part", "handon"),
	})
}

// reached is where other machines reach a door; local is this machine's address.
func reached(door net.Addr, local string) string {
	tcp, ok := door.(*net.TCPAddr)
	if !ok {
		return "" // it is off
	}
	if tcp.IP.IsUnspecified() {
		return net.JoinHostPort(local, strconv.Itoa(tcp.Port))
	}
	return tcp.String()
}

// Door gives an open door, grpc, http or metrics, to who serves there from now on; nil where there is none to give.
func (c *Cluster) Door(key string) net.Listener {
	if c == nil || c.front == nil {
		return nil
	}
	return c.front.Take(key)
}

// Doors reports whether Door gives any.
func (c *Cluster) Doors() bool { return c != nil && c.front != nil }

// Metrics are those of requests that were handed on.
func (c *Cluster) Metrics() prometheus.Collector { return c.front }

// HandedOn ends the handing on, once what was handed on is answered, and closes doors that nobody has taken.
func (c *Cluster) HandedOn() error {
	if !c.Doors() {
		return nil
	}
	return c.front.Close(c.drain)
}

// Name is that of this replica; empty without a cluster.
func (c *Cluster) Name() string {
	if c == nil {
		return ""
	}
	return c.name
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
	if unwritten := c.Store.Close(); unwritten != nil {
		c.log.Warn("what happened last is not in the release's state", "error", unwritten)
	}
	c.lease.Release()
	return errors.Join(err, c.HandedOn())
}
