// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package strict_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/stretchr/testify/require"
)

const compose = "../../compose/compose.yaml"

// project is what docker compose reads out of a file.
func project(t *testing.T, page string, environment map[string]string) (*types.Project, error) {
	t.Helper()
	dir, err := filepath.Abs(filepath.Dir(compose))
	require.NoError(t, err)
	return loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir: dir, Environment: environment, ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(dir, "compose.yaml"), Content: []byte(page)}},
	}, func(o *loader.Options) { o.SetProjectName("conch", true) })
}

// The compose file is one that docker compose takes: Triton, Conch, Prometheus and Grafana, with files that there are.
func TestComposeFile(t *testing.T) {
	page, err := os.ReadFile(compose)
	require.NoError(t, err)
	p, err := project(t, string(page), map[string]string{"MODELS": "/models"})
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"triton", "conch", "prometheus", "grafana"}, p.ServiceNames())
	for _, s := range p.Services {
		for _, v := range s.Volumes {
			if v.Type == types.VolumeTypeBind && v.Source != "/models" {
				require.FileExists(t, firstFile(t, v.Source), "%s mounts %s", s.Name, v.Source)
			}
		}
	}

	_, err = project(t, string(page), nil)
	require.ErrorContains(t, err, "say MODELS=/your/model/repository")
	for mistake, want := range map[string]string{"    restarts: unless-stopped": "restarts", "    restart: [always]": "restart", "    depends_on: [nobody]\n    restart: always": "nobody"} {
		wrong := strings.Replace(strings.Replace(string(page), "    depends_on: [triton]\n", "", 1), "    restart: unless-stopped", mistake, 1)
		_, err := project(t, wrong, map[string]string{"MODELS": "/models"})
		require.ErrorContains(t, err, want, mistake)
	}
}

// firstFile is a path, or the first file in a directory.
func firstFile(t *testing.T, path string) (found string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(path, func(at string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && found == "" {
			found = at
		}
		return err
	}))
	return found
}
