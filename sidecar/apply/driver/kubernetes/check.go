// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	authorization "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// oldest is the first minor version of Kubernetes 1 whose Pods have the preStop action sleep; with DRA 1.34, which has resource.k8s.io/v1.
const oldest = 30

// may are a verb and a resource that conch needs.
type may struct {
	verb, group, resource string
	// namespaced: in the namespace of the release; else in the whole cluster.
	namespaced bool
}

func needs(dra bool) (all []may) {
	add := func(group, resource string, namespaced bool, verbs ...string) {
		for _, v := range verbs {
			all = append(all, may{v, group, resource, namespaced})
		}
	}
	add("", "nodes", false, "list", "watch")
	add("", "pods", true, "list", "watch", "create", "delete")
	add("", "pods/status", true, "patch")
	add("", "events", true, "list", "create")
	add("policy", "poddisruptionbudgets", true, "list", "watch", "create", "patch")
	if dra {
		add("resource.k8s.io", "resourceslices", false, "list", "watch")
		add("resource.k8s.io", "resourceclaims", false, "list", "watch")
		add("resource.k8s.io", "resourceclaims", true, "create", "patch", "delete")
	}
	return all
}

// Check refuses a cluster that is too old, and one that does not let conch do all that New, Lead and the state have to: the error says at once what is missing. It
// reports whether the cluster has DRA.
func (c Connection) Check(ctx context.Context) (dra bool, err error) {
	if dra, err = c.version(); err == nil {
		err = c.permitted(ctx, append(needs(dra), toLead()...))
	}
	if err != nil {
		return false, fmt.Errorf("driver kubernetes: %w", err)
	}
	return dra, nil
}

// version refuses a cluster that is too old. It reports whether the cluster has DRA.
func (c Connection) version() (dra bool, err error) {
	version, err := c.Client.Discovery().ServerVersion()
	if err != nil {
		return false, fmt.Errorf("the API server does not answer: %w", err)
	}
	minor, err := strconv.Atoi(strings.TrimRight(version.Minor, "+"))
	if err != nil || version.Major != "1" || minor < oldest {
		return false, fmt.Errorf("the cluster is Kubernetes %s; conch needs 1.%d or later, and 1.34 for DRA", version.GitVersion, oldest)
	}
	_, err = c.Client.Discovery().ServerResourcesForGroupVersion("resource.k8s.io/v1")
	if dra = err == nil; err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("whether the cluster has resource.k8s.io/v1: %w", err)
	}
	return dra, nil
}

// toLead is what Lead needs, and what the leader's state does (package configmaps).
func toLead() (all []may) {
	for _, verb := range []string{"get", "create", "update"} {
		all = append(all, may{verb, "coordination.k8s.io", "leases", true})
	}
	for _, verb := range []string{"get", "list", "create", "update", "delete"} {
		all = append(all, may{verb, "", "configmaps", true})
	}
	return all
}

// toFollow is what a conch that waits for the lease needs to learn of it without asking again and again.
func toFollow() []may {
	return []may{{"list", "coordination.k8s.io", "leases", true}, {"watch", "coordination.k8s.io", "leases", true}}
}

// toFollowState is what such a conch needs to have the release's state before it leads.
func toFollowState() []may { return []may{{"watch", "", "configmaps", true}} }

// permitted asks the API server whether conch may do what it has to. The error lists what it may not.
func (c Connection) permitted(ctx context.Context, needs []may) error {
	var missing []string
	for _, n := range needs {
		resource, sub, _ := strings.Cut(n.resource, "/")
		attributes := &authorization.ResourceAttributes{Verb: n.verb, Group: n.group, Resource: resource, Subresource: sub}
		where := "the cluster"
		if n.namespaced {
			attributes.Namespace, where = c.Namespace, "namespace "+c.Namespace
		}
		review := &authorization.SelfSubjectAccessReview{Spec: authorization.SelfSubjectAccessReviewSpec{ResourceAttributes: attributes}}
		answer, err := c.Client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, meta.CreateOptions{})
		if err != nil {
			return fmt.Errorf("what conch may do in the cluster: %w", err)
		}
		if !answer.Status.Allowed {
			name := n.resource
			if n.group != "" {
				name += "." + n.group
			}
			missing = append(missing, n.verb+" "+name+" in "+where)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	return errors.New("conch may not: " + strings.Join(missing, "; ") + ". docs/kubernetes.md has the role that allows it")
}
