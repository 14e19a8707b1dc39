// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"cmp"
	"fmt"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// Requests to the API server a second, and at once: a plan for many partitions starts many Pods, and a conch at rest asks for nothing.
const (
	requestRate  = 50
	requestBurst = 100
)

// Connection is a cluster with the namespace that conch works in.
type Connection struct {
	Client    kubernetes.Interface
	Namespace string
}

// Connect makes a client of a cluster: of a kubeconfig's present context, or, where kubeconfig is empty, of the cluster in which this process is a
// Pod. The namespace is the Pod's, or the context's, unless another is wanted.
func Connect(kubeconfig, namespace string) (Connection, error) {
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{})
	config, err := loader.ClientConfig()
	if err != nil {
		return Connection{}, fmt.Errorf("driver.kubernetes.kubeconfig: %w; it may be left out where conch runs as a Pod of the cluster", err)
	}
	own, _, err := loader.Namespace()
	if err != nil {
		return Connection{}, fmt.Errorf("driver.kubernetes.kubeconfig: %w", err)
	}
	// client-go's own log would go past conch's, in another form. What matters of it is in errors.
	klog.SetLogger(logr.Discard())
	config.QPS, config.Burst, config.UserAgent = requestRate, requestBurst, "conch"
	client, err := kubernetes.NewForConfig(config)
	return Connection{Client: client, Namespace: cmp.Or(namespace, own, "default")}, err
}
