// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package strict_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// The golden files of the chart are what helm renders: e2e/deploy holds them to that.
const golden = "../../../e2e/deploy/testdata/chart-*.golden.yaml"

func decoder(t *testing.T) runtime.Decoder {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		appsv1.AddToScheme, corev1.AddToScheme, policyv1.AddToScheme, monitoringv1.AddToScheme, rbacv1.AddToScheme, networkingv1.AddToScheme,
	} {
		require.NoError(t, add(scheme))
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
}

// documents are the manifests of a file.
func documents(t *testing.T, page []byte) (all [][]byte) {
	t.Helper()
	for reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(page))); ; {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		if len(bytes.TrimSpace(document)) > 0 {
			all = append(all, document)
		}
	}
}

func TestManifestsAreOfTheirTypes(t *testing.T) {
	all := []string{"ConfigMap", "Deployment", "PodDisruptionBudget", "PrometheusRule", "Service", "ServiceMonitor"}
	for name, want := range map[string][]string{
		"attach": all, "own": all, "beside": {"ConfigMap", "PrometheusRule", "Service", "ServiceMonitor"}, "patch-add": {"Deployment"},
		"cluster": {"ClusterRole", "ClusterRoleBinding", "ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "PrometheusRule", "Role", "RoleBinding", "Service", "ServiceAccount", "ServiceMonitor"},
		"service": append([]string{"Role", "RoleBinding", "ServiceAccount"}, all...),
	} {
		t.Run(name, func(t *testing.T) {
			page, err := os.ReadFile(strings.Replace(golden, "*", name, 1))
			require.NoError(t, err)
			var kinds []string
			for _, document := range documents(t, page) {
				object, kind, err := decoder(t).Decode(document, nil, nil)
				require.NoError(t, err, "%s", document)
				kinds = append(kinds, kind.Kind)
				if d, ok := object.(*appsv1.Deployment); ok {
					requireContainers(t, d.Spec.Template.Spec)
				}
			}
			require.ElementsMatch(t, want, kinds)
		})
	}
}

// With mode cluster Conch's own Pod keeps Pod Security's strictest standard: the server's own check says so.
func TestConchIsRestricted(t *testing.T) {
	page, err := os.ReadFile(strings.Replace(golden, "*", "cluster", 1))
	require.NoError(t, err)
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	require.NoError(t, err)
	restricted := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	for _, document := range documents(t, page) {
		object, _, err := decoder(t).Decode(document, nil, nil)
		require.NoError(t, err)
		d, ok := object.(*appsv1.Deployment)
		if !ok {
			continue
		}
		pod := d.Spec.Template
		for _, result := range evaluator.EvaluatePod(restricted, &pod.ObjectMeta, &pod.Spec) {
			require.True(t, result.Allowed, "%s: %s", result.ForbiddenReason, result.ForbiddenDetail)
		}
		pod.Spec.Containers[0].SecurityContext.RunAsNonRoot = nil
		require.False(t, policy.AggregateCheckResults(evaluator.EvaluatePod(restricted, &pod.ObjectMeta, &pod.Spec)).Allowed, "the check finds what is wrong")
		return
	}
	t.Fatal("no Deployment")
}

// requireContainers is: each has an image, bounds of its resources, no more rights than it needs, and mounts only volumes that there are.
func requireContainers(t *testing.T, pod corev1.PodSpec) {
	t.Helper()
	volumes := map[string]bool{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
	}
	require.NotEmpty(t, pod.Containers)
	for _, c := range pod.Containers {
		require.NotEmpty(t, c.Image, c.Name)
		require.NotEmpty(t, c.Resources.Requests, "%s asks for nothing: it would be the first to be evicted", c.Name)
		for _, m := range c.VolumeMounts {
			require.True(t, volumes[m.Name], "%s mounts %s, which is no volume of the Pod", c.Name, m.Name)
		}
		if strings.Contains(c.Name, "conch") {
			require.NotNil(t, c.LivenessProbe, c.Name)
			require.NotNil(t, c.ReadinessProbe, c.Name)
			require.False(t, *c.SecurityContext.AllowPrivilegeEscalation, c.Name)
		}
	}
}

// What is wrong with a manifest is seen.
func TestMistakesAreFound(t *testing.T) {
	page, err := os.ReadFile(strings.Replace(golden, "*", "own", 1))
	require.NoError(t, err)
	for name, c := range map[string]struct{ old, mistake, want string }{
		"misspelt":       {"\n  replicas:", "\n  replica:", `unknown field "spec.replica"`},
		"a wrong type":   {"\n  replicas: 1", "\n  replicas: one", "cannot unmarshal"},
		"doubled":        {"\n  replicas: 1", "\n  replicas: 1\n  replicas: 2", `key "replicas" already set`},
		"in the monitor": {"endpoints:", "endpoint:", `unknown field "spec.endpoint"`},
		"in a rule":      {"expr: ", "expression: ", "unknown field"},
		"unknown kind":   {"kind: PodDisruptionBudget", "kind: PodDisruptionBudge", "no kind"},
	} {
		t.Run(name, func(t *testing.T) {
			wrong := strings.Replace(string(page), c.old, c.mistake, 1)
			require.NotEqual(t, string(page), wrong)
			var found error
			for _, document := range documents(t, []byte(wrong)) {
				if _, _, err := decoder(t).Decode(document, nil, nil); err != nil {
					found = errors.Join(found, err)
				}
			}
			require.ErrorContains(t, found, c.want)
		})
	}
}
