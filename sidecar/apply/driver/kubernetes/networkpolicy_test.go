// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

// chart is what Helm makes of the chart for mode cluster, as far as it says who reaches whom.
type chart struct {
	policies   []networking.NetworkPolicy
	deployment apps.Deployment
	service    core.Service
	// release of the servers' labels, in conch.yaml.
	release string
}

func chartOfACluster(t *testing.T) (c chart) {
	page, err := os.ReadFile("../../../../e2e/deploy/testdata/chart-cluster.golden.yaml")
	require.NoError(t, err)
	for document := range strings.SplitSeq(string(page), "---\n") {
		var kind meta.TypeMeta
		require.NoError(t, yaml.Unmarshal([]byte(document), &kind))
		switch kind.Kind {
		case "NetworkPolicy":
			var p networking.NetworkPolicy
			require.NoError(t, yaml.UnmarshalStrict([]byte(document), &p))
			c.policies = append(c.policies, p)
		case "Deployment":
			require.NoError(t, yaml.UnmarshalStrict([]byte(document), &c.deployment))
		case "Service":
			require.NoError(t, yaml.UnmarshalStrict([]byte(document), &c.service))
		case "ConfigMap":
			var m core.ConfigMap
			require.NoError(t, yaml.UnmarshalStrict([]byte(document), &m))
			var conch struct {
				Driver struct{ Kubernetes struct{ Release string } }
			}
			require.NoError(t, yaml.Unmarshal([]byte(m.Data["conch.yaml"]), &conch))
			c.release = conch.Driver.Kubernetes.Release
		}
	}
	return c
}

// reaches says whether a network that enforces policies lets a Pod of the namespace open a TCP connection to a port of another: any policy that chooses the other
// forbids what none of them allows.
func (c chart) reaches(t *testing.T, from, to labels.Set, port int32) bool {
	matches := func(s *meta.LabelSelector, l labels.Set) bool {
		selector, err := meta.LabelSelectorAsSelector(s)
		require.NoError(t, err)
		return selector.Matches(l)
	}
	chosen := false
	for _, p := range c.policies {
		if !matches(&p.Spec.PodSelector, to) || !slices.Contains(p.Spec.PolicyTypes, networking.PolicyTypeIngress) {
			continue
		}
		chosen = true
		for _, rule := range p.Spec.Ingress {
			ports := len(rule.Ports) == 0 || slices.ContainsFunc(rule.Ports, func(p networking.NetworkPolicyPort) bool {
				return (p.Protocol == nil || *p.Protocol == core.ProtocolTCP) && (p.Port == nil || p.Port.IntVal == port)
			})
			peers := len(rule.From) == 0 || slices.ContainsFunc(rule.From, func(p networking.NetworkPolicyPeer) bool {
				require.Nil(t, p.IPBlock, "a Pod's address may be any")
				require.Nil(t, p.NamespaceSelector, "the release's own namespace is enough")
				return p.PodSelector != nil && matches(p.PodSelector, from)
			})
			if ports && peers {
				return true
			}
		}
	}
	return !chosen
}

// TestOnlyConchReachesTheServers: by the chart's NetworkPolicy, with the labels that the Pods of the driver have, whatever the Pod template adds. Conch's own
// doors, to which clients, other replicas and Prometheus come, stay open.
func TestOnlyConchReachesTheServers(t *testing.T) {
	rendered := chartOfACluster(t)
	c := newCluster(t, node("node-1"), slice("node-1"))
	o := options(c)
	o.Release, o.Template = rendered.release, `{"metadata": {"labels": {"app.kubernetes.io/name": "conch", "app.kubernetes.io/instance": "demo"}}}`
	d := open(t, o)
	s, err := d.Start(t.Context(), part(t, d, "node-1.gpu-0", 100))
	require.NoError(t, err)
	require.Len(t, c.names(), 1)
	server := labels.Set(c.pod(c.names()[0]).Labels)
	conch := labels.Set(rendered.deployment.Spec.Template.Labels)
	other := labels.Merge(conch, labels.Set{"app.kubernetes.io/instance": "another"})
	stranger := labels.Set{"app": "client"}
	for _, port := range []int32{8000, 8001, 8002} {
		require.True(t, rendered.reaches(t, conch, server, port), port)
		for who, from := range map[string]labels.Set{"a client": stranger, "the conch of another release": other, "a server": server, "a Pod without labels": {}} {
			require.False(t, rendered.reaches(t, from, server, port), "%s, port %d", who, port)
		}
	}
	require.False(t, rendered.reaches(t, conch, server, 22), "nothing else of a server is for anybody")

	require.True(t, labels.SelectorFromSet(rendered.service.Spec.Selector).Matches(conch))
	require.False(t, labels.SelectorFromSet(rendered.service.Spec.Selector).Matches(server), "clients are not sent to servers")
	ports := rendered.deployment.Spec.Template.Spec.Containers[0].Ports
	require.Len(t, rendered.service.Spec.Ports, len(ports))
	for _, p := range rendered.service.Spec.Ports {
		at := slices.IndexFunc(ports, func(c core.ContainerPort) bool { return c.Name == p.TargetPort.StrVal })
		require.GreaterOrEqual(t, at, 0, p.Name)
		for _, from := range []labels.Set{stranger, conch, other} {
			require.True(t, rendered.reaches(t, from, conch, ports[at].ContainerPort), p.Name)
		}
	}
	require.NoError(t, s.Stop(t.Context()))
}
