// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package strict_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// asJSON is a file as kubectl sends it.
func asJSON(t *testing.T, file string) []byte {
	t.Helper()
	page, err := os.ReadFile(file)
	require.NoError(t, err)
	out, err := yaml.ToJSON(page)
	require.NoError(t, err)
	return out
}

// patched is what the API server makes of a Deployment and the chart's patch.
func patched(t *testing.T, original []byte, patch string) []byte {
	t.Helper()
	out, err := strategicpatch.StrategicMergePatch(original, asJSON(t, strings.Replace(golden, "*", patch, 1)), appsv1.Deployment{})
	require.NoError(t, err)
	return out
}

func deployment(t *testing.T, text []byte) *appsv1.Deployment {
	t.Helper()
	object, _, err := decoder(t).Decode(text, nil, nil)
	require.NoError(t, err, "%s", text)
	d, ok := object.(*appsv1.Deployment)
	require.True(t, ok)
	return d
}

// Conch comes into a Deployment that another release has as one more container with its volumes, and all else stays as it was.
func TestThePatchPutsConchBesideATriton(t *testing.T) {
	original := asJSON(t, "testdata/triton.yaml")
	before, with := deployment(t, original), patched(t, original, "patch-add")
	after := deployment(t, with)
	requireContainers(t, after.Spec.Template.Spec)

	containers := map[string]corev1.Container{}
	ports, names := map[int32]string{}, map[string]string{}
	for _, c := range after.Spec.Template.Spec.Containers {
		containers[c.Name] = c
		for _, p := range c.Ports {
			require.Empty(t, ports[p.ContainerPort], "%s and %s have port %d", ports[p.ContainerPort], c.Name, p.ContainerPort)
			require.Empty(t, names[p.Name], "%s and %s have a port %s", names[p.Name], c.Name, p.Name)
			ports[p.ContainerPort], names[p.Name] = c.Name, c.Name
		}
	}
	require.Len(t, containers, 2)
	require.Equal(t, before.Spec.Template.Spec.Containers[0], containers["triton"])
	selector, err := metav1.LabelSelectorAsSelector(after.Spec.Selector)
	require.NoError(t, err)
	require.True(t, selector.Matches(labels.Set(after.Spec.Template.Labels)), "the Deployment finds its Pods")

	// Without what Conch has, it is the Deployment that it was.
	rest := after.DeepCopy()
	own := &rest.Spec.Template
	delete(own.Labels, "conch/release")
	delete(own.Annotations, "conch/config")
	own.Spec.Containers = before.Spec.Template.Spec.Containers
	var others []corev1.Volume
	for _, v := range own.Spec.Volumes {
		if !strings.HasPrefix(v.Name, "conch-") {
			others = append(others, v)
		}
	}
	require.Len(t, others, len(own.Spec.Volumes)-4)
	own.Spec.Volumes = others
	require.Equal(t, before, rest)

	require.JSONEq(t, string(with), string(patched(t, with, "patch-add")), "a second time changes nothing")
	require.Equal(t, before, deployment(t, patched(t, with, "patch-remove")), "the other patch takes all of it out")
}

// The Service and the ConfigMap of the release are of the Pods that the patch makes.
func TestTheReleaseFitsThePatch(t *testing.T) {
	pod := deployment(t, patched(t, asJSON(t, "testdata/triton.yaml"), "patch-add")).Spec.Template
	page, err := os.ReadFile(strings.Replace(golden, "*", "beside", 1))
	require.NoError(t, err)
	ports := map[string]bool{}
	configured := ""
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			ports[p.Name] = c.Name == "conch"
		}
	}
	for _, v := range pod.Spec.Volumes {
		if v.Name == "conch-config" {
			configured = v.ConfigMap.Name
		}
	}
	found := map[string]bool{}
	for _, document := range documents(t, page) {
		object, _, err := decoder(t).Decode(document, nil, nil)
		require.NoError(t, err)
		switch o := object.(type) {
		case *corev1.Service:
			found["Service"] = true
			require.True(t, labels.SelectorFromSet(o.Spec.Selector).Matches(labels.Set(pod.Labels)), "the Service finds the Pods")
			for _, p := range o.Spec.Ports {
				require.Equal(t, intstr.String, p.TargetPort.Type)
				require.True(t, ports[p.TargetPort.StrVal], "port %s leads to conch", p.TargetPort.StrVal)
			}
		case *corev1.ConfigMap:
			found["ConfigMap"] = true
			require.Equal(t, configured, o.Name)
		case *appsv1.Deployment:
			t.Error("the release has a Deployment of its own")
		}
	}
	require.Len(t, found, 2)
}

// A patch that loses what is there, or that the API server would refuse, is seen: here one whose container has the name of Triton's.
func TestAPatchOfTritonsContainerIsSeen(t *testing.T) {
	original := asJSON(t, "testdata/triton.yaml")
	patch := strings.Replace(string(asJSON(t, strings.Replace(golden, "*", "patch-add", 1))), `"name":"conch"`, `"name":"triton"`, 1)
	require.Contains(t, patch, `"name":"triton","ports"`)
	require.True(t, json.Valid([]byte(patch)))
	with, err := strategicpatch.StrategicMergePatch(original, []byte(patch), appsv1.Deployment{})
	require.NoError(t, err)
	after := deployment(t, with)
	require.Len(t, after.Spec.Template.Spec.Containers, 1)
	require.NotEqual(t, deployment(t, original).Spec.Template.Spec.Containers[0], after.Spec.Template.Spec.Containers[0])
}
