// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"
)

const dockerfile = "../../deploy/docker/Dockerfile"

// hadolint is what the linter has to say of a Dockerfile, and whether it lets it pass.
func hadolint(t *testing.T, file string) (string, error) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), setting(t, "CONCH_HADOLINT"), "--no-color", file).CombinedOutput()
	return string(out), err
}

// The Dockerfile passes the linter, which does not pass one with a mistake.
func TestDockerfileIsLinted(t *testing.T) {
	output, err := hadolint(t, dockerfile)
	require.NoError(t, err, output)
	require.Empty(t, output)

	page, err := os.ReadFile(dockerfile)
	require.NoError(t, err)
	for mistake, rule := range map[string]string{"WORKDIR src\n": "DL3000", "RUN cd /src && sudo make\n": "DL3004", "ADD . /elsewhere\n": "DL3020"} {
		wrong := filepath.Join(t.TempDir(), "Dockerfile")
		require.NoError(t, os.WriteFile(wrong, []byte(strings.Replace(string(page), "WORKDIR /src\n", "WORKDIR /src\n"+mistake, 1)), 0o600))
		output, err := hadolint(t, wrong)
		require.Error(t, err)
		require.Contains(t, output, rule)
	}
}

// What the images of the compose file and the chart are called, and which paths they have, is what the Dockerfile makes.
func TestImagesHaveWhatIsStarted(t *testing.T) {
	page, err := os.ReadFile(dockerfile)
	require.NoError(t, err)
	text := string(page)
	for _, target := range []string{"attach", "triton"} {
		require.Regexp(t, `(?m)^FROM \S+ AS `+target+`$`, text)
	}
	compose, err := os.ReadFile("../../deploy/compose/compose.yaml")
	require.NoError(t, err)
	var services struct {
		Services map[string]struct {
			Build struct{ Context, Dockerfile, Target string }
			Image string
		}
	}
	require.NoError(t, yaml.Unmarshal(compose, &services))
	for name, s := range services.Services {
		if s.Build.Dockerfile == "" {
			require.NotEmpty(t, s.Image, name)
			continue
		}
		require.FileExists(t, filepath.Join("../../deploy/compose", s.Build.Context, s.Build.Dockerfile), name)
		require.Contains(t, []string{"", "attach", "triton"}, s.Build.Target, name)
	}
	// What an image is FROM has to have the Go that go.mod asks for, and the Triton that the chart runs.
	module, err := os.ReadFile("../../go.mod")
	require.NoError(t, err)
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(module)
	require.Contains(t, text, "ARG GO="+string(version[1])+"\n")
	values, err := os.ReadFile("../../deploy/helm/conch/values.yaml")
	require.NoError(t, err)
	triton := regexp.MustCompile(`ARG TRITON=(\S+)`).FindStringSubmatch(text)
	require.Contains(t, string(values), triton[1])
	require.Equal(t, triton[1], services.Services["triton"].Image)
}
