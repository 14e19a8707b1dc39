// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package cluster is the right of this conch to change the servers of its release in a cluster: the lease that one conch at a time has, and the state
// that its holder writes. A conch that has it not follows: it reads that state, changes nothing, and hands clients' requests on to the one that leads, until it
// leads itself. With drivers other than kubernetes it is empty.
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
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/conch-serving/conch/sidecar/apply/driver/kubernetes"
	"github.com/conch-serving/conch/sidecar/apply/driver/kubernetes/configmaps"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/handon"
)

// Cluster is a cluster with servers that this conch leads, or follows.
type Cluster struct {
	kubernetes.Connection
	// DRA: the cluster has dynamic resource allocation.
	DRA bool
	// Store has the release's state, and is read only while another conch leads; Files, a directory of the volume that every conch of the release mounts, has the
	// content of models.
	Store *configmaps.Store
	Files string
	name  string
	self  kubernetes.Replica
	k     config.Kubernetes
	owner *meta.OwnerReference // of the state; nil: it has none
	lease atomic.Pointer[kubernetes.Lease]
	// leader is the name of the replica that leads; nil: it is not known.
	leader atomic.Pointer[string]
	// leading is closed once this conch leads, and has taken over the state.
	leading chan struct{}
	// front hands requests on for as long as another conch leads; nil where none are.
	front *handon.Front
	// onward hands on what this conch has accepted before another one came to lead; nil: this one executes it, or cannot hand it on.
	onward atomic.Pointer[handon.Front]
	drain  time.Duration
	// reaching is what Reaching was given, and asideFrom, Run's alone, when this conch may look again whether it steps aside.
	reaching  atomic.Pointer[func() time.Time]
	asideFrom time.Time
	lost      chan error
	log       *slog.Logger
}

// New reaches the cluster and follows the release's state, which another conch may lead. Requests of clients wait until it is known who leads. Connections bounds
// those of clients.
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
	return follow(ctx, c, connection, host, connections, log)
}

// follow begins as one of the replicas of a release.
func follow(ctx context.Context, c *config.Config, connection kubernetes.Connection, host string, connections int, log *slog.Logger) (_ *Cluster, err error) {
	k := c.Driver.Kubernetes
	all := &Cluster{
		Connection: connection, Files: filepath.Join(k.Models.Path, "content"), name: host, self: kubernetes.Replica{Name: host, ID: uuid.NewString()}, k: k,
		leading: make(chan struct{}), lost: make(chan error, 1), drain: c.Limits.Drain.Std(), log: log,
	}
	if all.front, err = handOn(c, host, connections, log); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, all.HandedOn())
		}
	}()
	if all.front != nil {
		local, err := all.LocalAddress(ctx)
		if err != nil {
			return nil, err
		}
		all.self.GRPC, all.self.HTTP = reached(all.front.Address("grpc"), local), reached(all.front.Address("http"), local)
	}
	if all.DRA, err = all.Check(ctx); err != nil { // first: else it would be refused one thing after the other
		return nil, err
	}
	if all.owner, err = all.OwnedBy(ctx, k.Owner); err != nil {
		return nil, err
	}
	all.Store, err = configmaps.Follow(ctx, configmaps.Options{
		Connection: connection, Release: k.Release, Identity: all.self.String(), Owner: all.owner, Fence: all.Held, Logger: log,
		Lost: func(err error) {
			all.end(fmt.Errorf("release %s: %w: this conch ends, and begins anew with what is kept then", k.Release, err))
		},
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// Lead waits until this conch leads its release, and takes over the state; then is called when that is its own, and before Leading says so. A conch asks for the lease
// only here, once it is made: until then it could not execute, and another one may. Where ctx ends before, it leads no more.
func (c *Cluster) Lead(ctx context.Context, then func() error) error {
	c.log.Info("following until the lease of the release is free", "namespace", c.Namespace, "release", c.k.Release)
	lease, err := kubernetes.Lead(ctx, kubernetes.LeaseOptions{
		Connection: c.Connection, Release: c.k.Release, Identity: c.self.String(), Duration: c.k.Lease.Std(), Logger: c.log,
		Leads: func(identity string) {
			r := kubernetes.ParseReplica(identity)
			c.leader.Store(&r.Name)
			if c.front != nil {
				c.front.Follow(handon.Owner{Name: r.Name, GRPC: r.GRPC, HTTP: r.HTTP})
			}
		},
		Lost: func(leader string) {
			c.goesOn(kubernetes.ParseReplica(leader))
			err := fmt.Errorf("another conch, %s, leads release %s by now: this one ends, and leaves the servers to it", kubernetes.ParseReplica(leader).Name, c.k.Release)
			if leader == "" {
				err = fmt.Errorf("another conch has led release %s while this one was cut off: this one ends, since what it knows is of before", c.k.Release)
			}
			c.end(err)
		},
	})
	if err != nil {
		return err
	}
	c.lease.Store(lease)
	said := ""
	for err = c.takeOver(ctx); kubernetes.Passing(err) && ctx.Err() == nil; err = c.takeOver(ctx) {
		if why := err.Error(); why != said { // a webhook of the cluster that is gone may stay so
			c.log.Warn("the release's state cannot be taken over yet; it is tried again", "error", err)
			said = why
		}
		select {
		case <-ctx.Done():
		case <-time.After(takeOverPause):
		}
	}
	if err == nil {
		err = then()
	}
	if err != nil {
		lease.Release()
		return err
	}
	c.log.Info("this conch leads its release", "release", c.k.Release)
	close(c.leading)
	return nil
}

// end has Run fail.
func (c *Cluster) end(err error) {
	select {
	case c.lost <- err:
	default: // it ends already
	}
}

// takeOverPause is between attempts to take over the state of a cluster whose API server does not answer.
const takeOverPause = 500 * time.Millisecond

// takeOver makes the release's state this conch's.
func (c *Cluster) takeOver(ctx context.Context) error {
	owner, err := c.OwnedBy(ctx, c.k.Owner)
	if err == nil && owner != nil && owner.UID != c.owner.UID {
		err = fmt.Errorf("driver.kubernetes.owner: ConfigMap %s was made anew while this conch followed, which has to start anew, too", owner.Name)
	}
	if err != nil {
		return err
	}
	return c.Store.TakeOver(ctx)
}

// Leading is closed once this conch leads; nil without a cluster, where there is nothing to wait for.
func (c *Cluster) Leading() <-chan struct{} {
	if c == nil {
		return nil
	}
	return c.leading
}

// Owner is the name of the replica that leads; empty while it is not known.
func (c *Cluster) Owner() string {
	if name := c.leader.Load(); name != nil {
		return *name
	}
	return ""
}

// Follows reports that this conch does not lead yet.
func (c *Cluster) Follows() bool {
	if c == nil {
		return false
	}
	select {
	case <-c.leading:
		return false
	default:
		return true
	}
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

// Address is that of a door that Door gives; nil where it gives none.
func (c *Cluster) Address(key string) net.Addr {
	if !c.Doors() {
		return nil
	}
	return c.front.Address(key)
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
func (c *Cluster) Held() error {
	if lease := c.lease.Load(); lease != nil {
		return lease.Held()
	}
	return kubernetes.ErrNotLeading
}

// Silence says since when the API server does not confirm that this conch leads, so that what plans change in the cluster waits, and how that shows; zero while it does, or this conch
// follows. The release is empty without a cluster.
func (c *Cluster) Silence() (release string, since time.Time, cause string) {
	if c == nil {
		return "", since, ""
	}
	if !c.Follows() {
		if s := c.lease.Load().Silence(); s != nil {
			return c.k.Release, s.Since, s.Cause.Error()
		}
	}
	return c.k.Release, since, ""
}

// Owns is nil while no other conch can lead, and this one has taken over: what it knows of the cluster was behind before.
func (c *Cluster) Owns() error {
	if c.Follows() {
		return kubernetes.ErrNotLeading
	}
	return c.Held()
}

// Fence is Owns; nil without a cluster, where no other conch can have the servers.
func (c *Cluster) Fence() func() error {
	if c == nil {
		return nil
	}
	return c.Owns
}

// lead waits until ctx ends, or this conch may not lead any more, as the error says.
func (c *Cluster) lead(ctx context.Context) error {
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-c.lost:
			return err
		case <-look.C:
			c.mayStepAside()
		}
	}
}

// Run implements component.Component: it fails once this conch has led and another does, or the state is not its any more. Whoever led has connections, queues and leases on places that are the
// other's by now: it ends, and follows from the beginning once it is started again.
func (c *Cluster) Run(ctx context.Context) error {
	err := c.lead(ctx)
	if unwritten := c.Store.Close(); unwritten != nil {
		c.log.Warn("what happened last is not in the release's state", "error", unwritten)
	}
	if lease := c.lease.Load(); lease != nil {
		lease.Release()
	}
	return errors.Join(err, c.HandedOn())
}
