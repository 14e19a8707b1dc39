// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"

	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/conch-serving/conch/sidecar/apply/driver"
)

// ServiceOptions of FollowService.
type ServiceOptions struct {
	// Connection has the namespace of the Service.
	Connection
	// Name of the Service; else Selector chooses Services by their labels, which the cluster copies to their EndpointSlices.
	Name, Selector string
	// Changed is called with all servers, sorted by name: once before FollowService returns, and whenever they are others than before. Calls do not overlap.
	Changed func([]Address)
	Logger  *slog.Logger
}

// Address is a Triton server behind a Service.
type Address struct {
	// Name of its Pod; where it is no Pod's, the host.
	Name string
	driver.Endpoint
}

// Service follows the servers behind a Service.
type Service struct {
	changed func([]Address)
	slices  discoverylisters.EndpointSliceNamespaceLister
	stop    context.CancelFunc
	ended   sync.WaitGroup

	mu    sync.Mutex
	known bool // last is what was reported
	last  []Address
}

// FollowService begins to follow a Service.
func FollowService(ctx context.Context, o ServiceOptions) (*Service, error) {
	refused := func(err error) (*Service, error) { return nil, fmt.Errorf("driver.service: %w", err) }
	selector := cmp.Or(o.Selector, labels.Set{discovery.LabelServiceName: o.Name}.String())
	if _, err := labels.Parse(selector); err != nil {
		return refused(fmt.Errorf("selector: %w", err))
	}
	if err := o.permitted(ctx, []may{{"list", "discovery.k8s.io", "endpointslices", true}, {"watch", "discovery.k8s.io", "endpointslices", true}}); err != nil {
		return refused(err)
	}
	life, stop := context.WithCancel(context.Background())
	s := &Service{changed: o.Changed, stop: stop}
	slices := informer(o.Client, o.Logger, "EndpointSlices", o.Client.DiscoveryV1().EndpointSlices(o.Namespace), &discovery.EndpointSlice{}, selector, "")
	s.slices = discoverylisters.NewEndpointSliceLister(slices.GetIndexer()).EndpointSlices(o.Namespace)
	_, err := slices.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { s.look() }, UpdateFunc: func(any, any) { s.look() }, DeleteFunc: func(any) { s.look() },
	})
	if err != nil {
		stop()
		return refused(err)
	}
	s.ended.Go(func() { slices.RunWithContext(life) })
	within, cancel := context.WithTimeout(ctx, syncPatience)
	defer cancel()
	if err := slices.synced(within); err != nil {
		s.Close()
		return refused(err)
	}
	s.look()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.last) == 0 {
		o.Logger.Warn("no server is behind the Service yet", "namespace", o.Namespace, "selector", selector)
	}
	return s, nil
}

// Close stops following. Changed is not called after it.
func (s *Service) Close() {
	s.stop()
	s.ended.Wait()
}

// look reports the servers where they are others than before.
func (s *Service) look() {
	all, err := s.slices.List(labels.Everything())
	if err != nil {
		panic(err) // it is a map
	}
	now := addresses(all)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.known || !slices.Equal(s.last, now) {
		s.known, s.last = true, now
		s.changed(now)
	}
}

// addresses are the servers of EndpointSlices, less those that are ending. Whether one is ready is asked of itself: a kubelet that is down
// makes Pods that serve unready.
func addresses(all []*discovery.EndpointSlice) []Address {
	byName := map[string]Address{}
	// A Pod with addresses of two families is in two slices: IPv4 counts.
	all = slices.SortedFunc(slices.Values(all), func(a, b *discovery.EndpointSlice) int {
		return cmp.Or(-cmp.Compare(a.AddressType, b.AddressType), cmp.Compare(a.Name, b.Name)) // the last of a name stays
	})
	for _, slice := range all {
		grpc, http, metrics := port(slice, "grpc", portGRPC), port(slice, "http", portHTTP), port(slice, "metrics", portMetrics)
		if grpc == "" || slice.AddressType == discovery.AddressTypeFQDN {
			continue
		}
		for _, e := range slice.Endpoints {
			if len(e.Addresses) == 0 || e.Conditions.Terminating != nil && *e.Conditions.Terminating {
				continue
			}
			at := func(port string) string {
				if port == "" {
					return "" // the Service does not have it
				}
				return net.JoinHostPort(e.Addresses[0], port)
			}
			a := Address{Name: e.Addresses[0], Endpoint: driver.Endpoint{GRPC: at(grpc), HTTP: at(http), Metrics: at(metrics)}}
			if e.TargetRef != nil && e.TargetRef.Name != "" {
				a.Name = e.TargetRef.Name
			}
			byName[a.Name] = a
		}
	}
	return slices.SortedFunc(maps.Values(byName), func(a, b Address) int { return cmp.Compare(a.Name, b.Name) })
}

// port of a slice: the one of that name, else the one that is Triton's own; empty where there is neither.
func port(s *discovery.EndpointSlice, name string, own int32) (found string) {
	for _, p := range s.Ports {
		switch {
		case p.Port == nil:
		case p.Name != nil && *p.Name == name:
			return strconv.Itoa(int(*p.Port))
		case *p.Port == own:
			found = strconv.Itoa(int(own))
		}
	}
	return found
}
