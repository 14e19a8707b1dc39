// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/conch-serving/conch/sidecar/apply/driver"
)

// server is a tritonserver in a Pod.
type server struct {
	*driver.Remote
	d     *Driver
	spec  driver.Spec
	at    driver.Endpoint
	name  string
	uid   types.UID
	begin time.Time

	once sync.Once
	done chan struct{}
	// answered is when it has last; nil: it never has.
	answered atomic.Pointer[time.Time]
	// has are the models that it said last that it has, as annotationModels writes them; nil: it was not asked. noted, keep's alone, is what was written last.
	has   atomic.Pointer[string]
	noted string

	mu    sync.Mutex
	death string
	// ending: conch deletes the Pod itself. left: Options.Leaving was called.
	ending, left bool
}

func endpoint(ip string) driver.Endpoint {
	at := func(port int) string { return net.JoinHostPort(ip, strconv.Itoa(port)) }
	return driver.Endpoint{GRPC: at(portGRPC), HTTP: at(portHTTP), Metrics: at(portMetrics)}
}

func began(p *core.Pod) time.Time {
	for _, c := range p.Status.ContainerStatuses {
		if c.Name == serverContainer && c.State.Running != nil {
			return c.State.Running.StartedAt.Time
		}
	}
	if p.Status.StartTime != nil {
		return p.Status.StartTime.Time
	}
	return time.Time{}
}

// Spec implements driver.Server; and so do the others.
func (s *server) Spec() driver.Spec         { return s.spec }
func (s *server) Endpoint() driver.Endpoint { return s.at }
func (s *server) Begin() time.Time          { return s.begin }

// Log is empty: the cluster has it (Driver.Log).
func (s *server) Log() string           { return "" }
func (s *server) Done() <-chan struct{} { return s.done }

// Ready implements driver.Server; and so does Live.
func (s *server) Ready(ctx context.Context) error { return s.noting(s.Remote.Ready(ctx)) }
func (s *server) Live(ctx context.Context) error  { return s.noting(s.Remote.Live(ctx)) }

// noting notes when the server has answered.
func (s *server) noting(err error) error {
	if err == nil {
		now := time.Now()
		s.answered.Store(&now)
	}
	return err
}

// lately is within which time a server that answers is asked again.
const lately = time.Minute

// serves reports that a server of a node has answered lately.
func (d *Driver) serves(node string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.servers {
		if at := s.answered.Load(); s.spec.Partition.GetNode() == node && at != nil && time.Since(*at) < lately {
			return true
		}
	}
	return false
}

// Models implements driver.Server, and notes what the server has.
func (s *server) Models(ctx context.Context) ([]string, error) {
	models, err := s.Remote.Models(ctx)
	if err == nil {
		has := listed(models)
		s.has.Store(&has)
	}
	return models, err
}

// longestList bounds the annotation: the API server takes no Pod whose annotations are longer than 256 KiB.
const longestList = 32 << 10

// listed is the text of annotationModels.
func listed(models []string) string {
	text := strings.Join(slices.Sorted(slices.Values(models)), ",")
	if len(text) > longestList {
		return strconv.Itoa(len(models)) + " models"
	}
	return text
}

// Death implements driver.Server.
func (s *server) Death() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.death
}

// die notes that the server is dead, the first time.
func (s *server) die(reason string) {
	s.once.Do(func() {
		s.mu.Lock()
		s.death = reason
		s.mu.Unlock()
		close(s.done)
		s.d.mu.Lock()
		delete(s.d.servers, s.uid)
		s.d.mu.Unlock()
		_ = s.Close() // it has ended
	})
}

func (s *server) isEnding() { s.mu.Lock(); s.ending = true; s.mu.Unlock() }

// Stop implements driver.Server: every model is unloaded, so that accepted requests are answered; then the Pod is deleted with grace, then without.
func (s *server) Stop(ctx context.Context) error {
	s.isEnding()
	unclean := s.d.b.Fence() // the server may be another conch's by now, which serves from it
	if unclean == nil {
		draining, cancel := context.WithTimeout(ctx, s.d.b.DrainTimeout)
		unclean = s.Release(draining)
		cancel()
	}
	grace := int64(1) // it has nothing left to do; the kubelet gives it two seconds
	if unclean != nil {
		grace = int64(max(s.d.b.StopTimeout, time.Second) / time.Second)
	}
	if err := s.d.remove(ctx, s.name, s.uid, grace); err != nil {
		unclean = errors.Join(unclean, err)
	}
	timer := time.NewTimer(s.d.b.StopTimeout + 5*time.Second)
	defer timer.Stop()
	select {
	case <-s.done:
		return nil
	case <-timer.C:
		unclean = errors.Join(unclean, fmt.Errorf("pod %s did not end within %s of its deletion", s.name, s.d.b.StopTimeout))
	case <-ctx.Done():
		unclean = errors.Join(unclean, ctx.Err())
	}
	return errors.Join(fmt.Errorf("killed, requests may have been cut off: %w", unclean), s.Kill(context.WithoutCancel(ctx)))
}

// Kill implements driver.Server: the Pod is deleted without grace. That it is gone from the API server means that the kubelet ends its processes now, or, where the node
// is lost, that they end with the node.
func (s *server) Kill(ctx context.Context) error {
	s.isEnding()
	if err := s.d.remove(ctx, s.name, s.uid, 0); err != nil {
		return fmt.Errorf("pod %s is not deleted yet, and is as soon as the API server allows it: %w", s.name, err)
	}
	select {
	case <-s.done:
	case <-time.After(2 * time.Second): // the cache is late
		s.die("killed")
	case <-ctx.Done():
	}
	return nil
}

// Leave implements driver.Server: the Pod goes on.
func (s *server) Leave() error {
	s.die("left to run")
	return nil
}

// seen takes in a Pod as it is now.
func (d *Driver) seen(p *core.Pod) {
	d.mu.Lock()
	s := d.servers[p.UID]
	d.mu.Unlock()
	if s == nil {
		return
	}
	if over(p) {
		s.die(ended(p))
		return
	}
	if p.DeletionTimestamp == nil {
		return
	}
	s.mu.Lock()
	tell := !s.ending && !s.left
	s.left = true
	s.mu.Unlock()
	if tell {
		d.b.Leaving(s.spec.Partition.GetId(), evicted(p))
	}
}

// gone takes in that a Pod is no more.
func (d *Driver) gone(p *core.Pod) {
	d.mu.Lock()
	s := d.servers[p.UID]
	delete(d.condemned, p.UID)
	d.mu.Unlock()
	if s != nil {
		s.die(cmp.Or(eviction(p, "was"), "pod "+p.Name+" was deleted"))
	}
}

// over reports that the server of a Pod has ended: another container of it may run on without end.
func over(p *core.Pod) bool {
	return p.Status.Phase == core.PodFailed || p.Status.Phase == core.PodSucceeded ||
		slices.ContainsFunc(p.Status.ContainerStatuses, func(c core.ContainerStatus) bool { return c.Name == serverContainer && c.State.Terminated != nil })
}

// ended says why. What the cluster did to the Pod explains how its server ended, and not the other way round.
func ended(p *core.Pod) string {
	if why := eviction(p, "was"); why != "" {
		return why
	}
	if s := p.Status; s.Reason != "" {
		return fmt.Sprintf("pod %s has ended: %s", p.Name, strings.TrimSuffix(s.Reason+": "+s.Message, ": "))
	}
	for _, c := range p.Status.ContainerStatuses {
		switch t := c.State.Terminated; {
		case c.Name != serverContainer || t == nil:
		case t.Reason == "StartError" || t.Reason == "ContainerCannotRun":
			return fmt.Sprintf("image %s has no tritonserver that can be started: %s; name an image that has one with driver.kubernetes.image, or its path with driver.tritonserver", c.Image, t.Message)
		default:
			return exited("tritonserver", p, t)
		}
	}
	for _, c := range p.Status.InitContainerStatuses {
		if t := c.State.Terminated; t != nil && t.ExitCode != 0 {
			return exited("init container "+c.Name, p, t)
		}
	}
	return fmt.Sprintf("pod %s has ended: %s", p.Name, cmp.Or(p.Status.Message, string(p.Status.Phase)))
}

// exited says how a container ended.
func exited(what string, p *core.Pod, t *core.ContainerStateTerminated) string {
	text := fmt.Sprintf("%s in pod %s ended with exit status %d", what, p.Name, t.ExitCode)
	switch {
	case t.Signal != 0:
		text = fmt.Sprintf("%s in pod %s was ended by signal %d", what, p.Name, t.Signal)
	case t.Reason != "" && t.Reason != "Error" && t.Reason != "Completed":
		text += " (" + t.Reason + ")"
	}
	if t.Message != "" {
		text += ": " + t.Message
	}
	return text
}

// evicted says who deletes a Pod.
func evicted(p *core.Pod) string {
	return cmp.Or(eviction(p, "is"), "pod "+p.Name+" is being deleted, not by conch")
}

// eviction says that a Pod is evicted, or was, and why; empty where it is not.
func eviction(p *core.Pod, is string) string {
	for _, c := range p.Status.Conditions {
		if c.Type == core.DisruptionTarget && c.Status == core.ConditionTrue {
			return fmt.Sprintf("pod %s %s evicted: %s", p.Name, is, cmp.Or(c.Message, c.Reason))
		}
	}
	return ""
}
