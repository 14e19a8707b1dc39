// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/go-logr/logr"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	authorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	discoveryv1 "k8s.io/client-go/kubernetes/typed/discovery/v1"
	policyv1 "k8s.io/client-go/kubernetes/typed/policy/v1"
	resourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// Requests to a group of the API a second, and at once: a plan for many partitions starts many Pods, and a conch at rest asks for nothing. Each group has its own
// account: a renewal of the lease that waited behind hundreds of Pods would come too late.
const (
	requestRate  = 50
	requestBurst = 100
)

// Connection is a cluster with the namespace that conch works in.
type Connection struct {
	Client    Client
	Namespace string
	// server is the API server, host:port.
	server string
}

// Client is the groups of the API that conch uses. client-go's Clientset has them with all the others, which are a fifth of a conch that links it.
type Client interface {
	Discovery() discovery.DiscoveryInterfaces
	AuthorizationV1() authorizationv1.AuthorizationV1Interface
	CoordinationV1() coordinationv1.CoordinationV1Interface
	CoreV1() corev1.CoreV1Interface
	DiscoveryV1() discoveryv1.DiscoveryV1Interface
	PolicyV1() policyv1.PolicyV1Interface
	ResourceV1() resourcev1.ResourceV1Interface
}

// Connect makes a client of a cluster: of a kubeconfig's present context, or, where kubeconfig is empty, of the cluster in which this process is a
// Pod. The namespace is the Pod's, or the context's, unless another is wanted. Key is that of conch.yaml which names the kubeconfig, for errors.
func Connect(key, kubeconfig, namespace string) (Connection, error) {
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{})
	config, err := loader.ClientConfig()
	if err != nil {
		return Connection{}, fmt.Errorf("%s: %w; it may be left out where conch runs as a Pod of the cluster", key, err)
	}
	own, _, err := loader.Namespace()
	if err != nil {
		return Connection{}, fmt.Errorf("%s: %w", key, err)
	}
	// client-go's own log would go past conch's, in another form. What matters of it is in errors.
	klog.SetLogger(logr.Discard())
	config.UserAgent, config.QPS, config.Burst = "conch", requestRate, requestBurst
	client, err := newClient(config)
	if err != nil {
		return Connection{}, fmt.Errorf("%s: %w", key, err)
	}
	at, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return Connection{}, fmt.Errorf("%s: %w", key, err)
	}
	port := cmp.Or(at.Port(), map[string]string{"http": "80"}[at.Scheme], "443")
	return Connection{Client: client, Namespace: cmp.Or(namespace, own, "default"), server: net.JoinHostPort(at.Hostname(), port)}, nil
}

// OwnedBy refers to a ConfigMap of the namespace, with which the cluster deletes what has the reference; nil for an empty name.
func (c Connection) OwnedBy(ctx context.Context, name string) (*meta.OwnerReference, error) {
	if name == "" {
		return nil, nil //nolint:nilnil // nothing is owned
	}
	owner, err := c.Client.CoreV1().ConfigMaps(c.Namespace).Get(ctx, name, meta.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("driver.kubernetes.owner: %w", err)
	}
	return &meta.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID}, nil
}

// WatchConfigMap is what calls seen with a ConfigMap of the namespace, as it is when watch begins and whenever it is another, until life ends. The caller runs
// it, and may not change what it sees: an empty ConfigMap where there is none any more.
func (c Connection) WatchConfigMap(ctx context.Context, log *slog.Logger, name string, seen func(*core.ConfigMap)) (watch func(life context.Context), err error) {
	if err := c.permitted(ctx, toFollowState()); err != nil {
		return nil, err
	}
	all := informer(c.Client, log, "ConfigMaps", c.Client.CoreV1().ConfigMaps(c.Namespace), &core.ConfigMap{}, "", "metadata.name="+name)
	see := func(object any) {
		if m, is := object.(*core.ConfigMap); is && m.Name == name {
			seen(m)
		}
	}
	_, err = all.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: see, UpdateFunc: func(_, now any) { see(now) },
		DeleteFunc: func(object any) {
			if last, unknown := object.(toolscache.DeletedFinalStateUnknown); unknown {
				object = last.Obj
			}
			if m, is := object.(*core.ConfigMap); is && m.Name == name {
				seen(&core.ConfigMap{})
			}
		},
	})
	return all.RunWithContext, err
}

// groups implements Client.
type groups struct {
	discovery     *discovery.DiscoveryClient
	authorization *authorizationv1.AuthorizationV1Client
	coordination  *coordinationv1.CoordinationV1Client
	core          *corev1.CoreV1Client
	endpoints     *discoveryv1.DiscoveryV1Client
	policy        *policyv1.PolicyV1Client
	resource      *resourcev1.ResourceV1Client
}

func (g groups) Discovery() discovery.DiscoveryInterfaces                  { return g.discovery }
func (g groups) AuthorizationV1() authorizationv1.AuthorizationV1Interface { return g.authorization }
func (g groups) CoordinationV1() coordinationv1.CoordinationV1Interface    { return g.coordination }
func (g groups) CoreV1() corev1.CoreV1Interface                            { return g.core }
func (g groups) DiscoveryV1() discoveryv1.DiscoveryV1Interface             { return g.endpoints }
func (g groups) PolicyV1() policyv1.PolicyV1Interface                      { return g.policy }
func (g groups) ResourceV1() resourcev1.ResourceV1Interface                { return g.resource }

// newClient makes the groups, which share one HTTP client.
func newClient(config *rest.Config) (Client, error) {
	through, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	var g groups
	var errs [7]error
	g.discovery, errs[0] = discovery.NewDiscoveryClientForConfigAndClient(config, through)
	g.authorization, errs[1] = authorizationv1.NewForConfigAndClient(config, through)
	g.coordination, errs[2] = coordinationv1.NewForConfigAndClient(config, through)
	g.core, errs[3] = corev1.NewForConfigAndClient(config, through)
	g.policy, errs[4] = policyv1.NewForConfigAndClient(config, through)
	g.resource, errs[5] = resourcev1.NewForConfigAndClient(config, through)
	g.endpoints, errs[6] = discoveryv1.NewForConfigAndClient(config, through)
	return g, errors.Join(errs[:]...)
}
