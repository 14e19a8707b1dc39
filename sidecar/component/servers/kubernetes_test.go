// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package servers

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"

	"github.com/conch-serving/conch/sidecar/config"
)

// TestServersOverTLSAsDocumented: the settings of docs/kubernetes.md for TLS to the servers are ones that conch takes, and the files that the servers' arguments name are in their Pods.
func TestServersOverTLSAsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/kubernetes.md")
	require.NoError(t, err)
	_, text, found := strings.Cut(string(page), "**TLS to the servers.**")
	require.True(t, found)
	_, text, found = strings.Cut(text, "\n\n    driver:\n")
	require.True(t, found)
	settings := "driver:\n"
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "    ") {
			break
		}
		settings += strings.TrimPrefix(line, "    ")
	}
	settings = strings.Replace(settings, "  kubernetes:\n", "  kubernetes:\n    image: triton\n    models: {path: /models, volume: {emptyDir: {}}}\n", 1)
	file := filepath.Join(t.TempDir(), "conch.yaml")
	require.NoError(t, os.WriteFile(file, []byte("repository: /models\n"+settings), 0o600))
	c, err := config.Load(file, nil, config.Environment{Getenv: func(string) string { return "" }})
	require.NoError(t, err)
	require.True(t, c.Driver.TLS.Enabled())
	o := PodOptions(c)
	require.Empty(t, o.Problems())
	var template core.PodTemplateSpec
	require.NoError(t, json.Unmarshal([]byte(o.Template), &template))
	mounts := template.Spec.Containers[0].VolumeMounts
	require.Len(t, mounts, 1)
	require.Equal(t, template.Spec.Volumes[0].Name, mounts[0].Name)
	require.Contains(t, o.Arguments, "--grpc-use-ssl=true")
	for _, a := range o.Arguments {
		if _, path, named := strings.Cut(a, "=/"); named {
			require.Equal(t, mounts[0].MountPath, filepath.Dir("/"+path))
		}
	}
}
