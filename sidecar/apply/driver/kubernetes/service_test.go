// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/conch-serving/conch/sidecar/apply/driver/kubernetes"
)

// endpoint is a Pod behind a Service.
func endpoint(pod, ip string, conditions discovery.EndpointConditions) discovery.Endpoint {
	return discovery.Endpoint{Addresses: []string{ip}, Conditions: conditions, TargetRef: &core.ObjectReference{Kind: "Pod", Name: pod}}
}

// endpoints is a slice of a Service; ports are "name=number".
func endpoints(name, service string, ports string, all ...discovery.Endpoint) *discovery.EndpointSlice {
	s := &discovery.EndpointSlice{
		ObjectMeta:  meta.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{"kubernetes.io/service-name": service, "app": "triton-" + service}},
		AddressType: discovery.AddressTypeIPv4, Endpoints: all,
	}
	for _, p := range strings.Fields(ports) {
		key, number, _ := strings.Cut(p, "=")
		n := int32(0)
		for _, digit := range number {
			n = n*10 + digit - '0'
		}
		s.Ports = append(s.Ports, discovery.EndpointPort{Name: &key, Port: &n})
	}
	return s
}

// follow gives what Changed is called with, as "name grpc http metrics".
func follow(t *testing.T, c *testCluster, o kubernetes.ServiceOptions) (now func() []string, calls func() int) {
	t.Helper()
	var mu sync.Mutex
	var last []string
	n := 0
	o.Connection, o.Logger = kubernetes.Connection{Client: c.Clientset, Namespace: namespace}, slog.New(slog.DiscardHandler)
	o.Changed = func(all []kubernetes.Address) {
		mu.Lock()
		defer mu.Unlock()
		n++
		last = nil
		for _, a := range all {
			last = append(last, strings.Join([]string{a.Name, a.GRPC, a.HTTP, a.Metrics}, " "))
		}
	}
	s, err := kubernetes.FollowService(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return func() []string { mu.Lock(); defer mu.Unlock(); return last }, func() int { mu.Lock(); defer mu.Unlock(); return n }
}

// What is behind a Service: by names of ports, else by Triton's own numbers. A Pod that is ending is left out, one that is unready is not.
func TestServersBehindAService(t *testing.T) {
	no, yes := false, true
	six := endpoints("six", "triton", "grpc=9001", endpoint("b", "fd00::2", discovery.EndpointConditions{}), endpoint("d", "fd00::4", discovery.EndpointConditions{}))
	six.AddressType = discovery.AddressTypeIPv6
	for name, c := range map[string]struct {
		options kubernetes.ServiceOptions
		objects []runtime.Object
		want    []string
	}{
		"ports by name, of several slices": {
			kubernetes.ServiceOptions{Name: "triton"},
			[]runtime.Object{
				endpoints("one", "triton", "grpc=9001 http=9000 metrics=9002", endpoint("b", "10.0.0.2", discovery.EndpointConditions{}), endpoint("a", "10.0.0.1", discovery.EndpointConditions{Ready: &no, Serving: &no})),
				endpoints("two", "triton", "inference=8001", endpoint("c", "10.0.0.3", discovery.EndpointConditions{Terminating: &yes, Serving: &yes}), endpoint("e", "10.0.0.5", discovery.EndpointConditions{})),
				endpoints("three", "other", "grpc=9001", endpoint("f", "10.0.0.6", discovery.EndpointConditions{})),
				six,
			},
			[]string{"a 10.0.0.1:9001 10.0.0.1:9000 10.0.0.1:9002", "b 10.0.0.2:9001 10.0.0.2:9000 10.0.0.2:9002", "d [fd00::4]:9001  ", "e 10.0.0.5:8001  "},
		},
		"Services by their labels": {
			kubernetes.ServiceOptions{Selector: "app in (triton-x, triton-y)"},
			[]runtime.Object{
				endpoints("one", "x", "g=8001 h=8000 m=8002", endpoint("a", "10.0.0.1", discovery.EndpointConditions{})),
				endpoints("two", "y", "g=8001", discovery.Endpoint{Addresses: []string{"10.0.0.2"}}), endpoints("three", "z", "g=8001", endpoint("c", "10.0.0.3", discovery.EndpointConditions{})),
			},
			[]string{"10.0.0.2 10.0.0.2:8001  ", "a 10.0.0.1:8001 10.0.0.1:8000 10.0.0.1:8002"},
		},
		"no gRPC":         {kubernetes.ServiceOptions{Name: "triton"}, []runtime.Object{endpoints("one", "triton", "http=8000", endpoint("a", "10.0.0.1", discovery.EndpointConditions{}))}, nil},
		"no such Service": {kubernetes.ServiceOptions{Name: "absent"}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			now, _ := follow(t, newCluster(t, c.objects...), c.options)
			require.Equal(t, c.want, now())
		})
	}
}

// Servers come and go; what changes nothing of them is no change.
func TestServersComeAndGo(t *testing.T) {
	slice := endpoints("one", "triton", "grpc=8001", endpoint("a", "10.0.0.1", discovery.EndpointConditions{}))
	c := newCluster(t, slice)
	now, calls := follow(t, c, kubernetes.ServiceOptions{Name: "triton"})
	require.Equal(t, 1, calls())
	set := func(change func(*discovery.EndpointSlice)) {
		slice = slice.DeepCopy()
		change(slice)
		_, err := c.DiscoveryV1().EndpointSlices(namespace).Update(t.Context(), slice, meta.UpdateOptions{})
		require.NoError(t, err)
	}
	set(func(s *discovery.EndpointSlice) { s.Annotations = map[string]string{"seen": "again"} })
	set(func(s *discovery.EndpointSlice) {
		s.Endpoints = append(s.Endpoints, endpoint("b", "10.0.0.2", discovery.EndpointConditions{}))
	})
	eventually(t, "b comes", func() bool { return slices.Equal(now(), []string{"a 10.0.0.1:8001  ", "b 10.0.0.2:8001  "}) })
	require.Equal(t, 2, calls())
	set(func(s *discovery.EndpointSlice) { yes := true; s.Endpoints[0].Conditions.Terminating = &yes })
	eventually(t, "a goes", func() bool { return slices.Equal(now(), []string{"b 10.0.0.2:8001  "}) })
	require.NoError(t, c.DiscoveryV1().EndpointSlices(namespace).Delete(t.Context(), "one", meta.DeleteOptions{}))
	eventually(t, "all are gone", func() bool { return len(now()) == 0 })
}

func TestAServiceThatCannotBeFollowed(t *testing.T) {
	c := newCluster(t)
	c.denied["watch endpointslices"] = true
	o := kubernetes.ServiceOptions{Connection: kubernetes.Connection{Client: c.Clientset, Namespace: namespace}, Name: "triton"}
	_, err := kubernetes.FollowService(t.Context(), o)
	require.ErrorContains(t, err, "driver.service: conch may not: watch endpointslices.discovery.k8s.io in namespace serving. docs/kubernetes.md has the role")
	o.Selector = "app=="
	_, err = kubernetes.FollowService(t.Context(), kubernetes.ServiceOptions{Connection: o.Connection, Selector: "!!"})
	require.ErrorContains(t, err, "driver.service: selector: ")
}
