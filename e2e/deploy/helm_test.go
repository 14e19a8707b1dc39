// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden files of the chart")

const chart = "../../deploy/helm/conch"

// render is what helm makes of the chart with some settings, or options of helm's own, without what it logs.
func render(t *testing.T, settings ...string) ([]byte, error) {
	t.Helper()
	arguments := []string{"template", "demo", chart, "--kube-version", "1.31.0"}
	for _, s := range settings {
		if strings.HasPrefix(s, "--") {
			arguments = append(arguments, s)
			continue
		}
		arguments = append(arguments, "--set", s)
	}
	command := exec.CommandContext(t.Context(), setting(t, "CONCH_HELM"), arguments...)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		t.Log(stderr.String())
	}
	return out, err
}

// The chart's manifests are those that were reviewed; the conch.yaml in them is one that conch takes, and the rules are those that promtool tests.
func TestChart(t *testing.T) {
	run(t, setting(t, "CONCH_HELM"), "lint", "--strict", "--kube-version", "1.31.0", chart)
	for name, c := range map[string]struct {
		settings  []string
		manifests int
	}{
		"attach":  {[]string{"mode=attach"}, 6},
		"own":     {[]string{"mode=own"}, 6},
		"cluster": {[]string{"mode=cluster", "cluster.podTemplate.spec.priorityClassName=serving", "cluster.gpus.sharing=none", "priorityClassName=critical"}, 12},
		// Conch in a Pod of its own before the servers of a Service.
		"service": {[]string{"attach.service.name=triton"}, 9},
		// Conch comes into a Deployment that another release has: the module deploy/helm/strict applies the patches to one.
		"beside":       {[]string{"attach.deployment=triton"}, 4},
		"patch-add":    {[]string{"attach.deployment=triton", "attach.patch=add"}, 1},
		"patch-remove": {[]string{"attach.deployment=triton", "attach.patch=remove"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := render(t, append(c.settings, "serviceMonitor.enabled=true", "prometheusRule.enabled=true", "config.defaults.slo=50ms")...)
			require.NoError(t, err)
			golden := filepath.Join("testdata", "chart-"+name+".golden.yaml")
			if *update {
				require.NoError(t, os.WriteFile(golden, out, 0o644))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			require.Equal(t, string(want), string(out), "go test ./e2e/deploy -run TestChart -args -update, if this is meant")

			kinds := map[string]map[string]any{}
			for decoder := yaml.NewDecoder(bytes.NewReader(out)); ; {
				var manifest map[string]any
				err := decoder.Decode(&manifest)
				if errors.Is(err, io.EOF) {
					break
				}
				require.NoError(t, err)
				if kind, ok := manifest["kind"].(string); ok {
					kinds[kind] = manifest
				}
			}
			require.Len(t, kinds, c.manifests)
			if c.manifests == 1 {
				return
			}
			configuration := filepath.Join(t.TempDir(), "conch.yaml")
			text, ok := kinds["ConfigMap"]["data"].(map[string]any)["conch.yaml"].(string)
			require.True(t, ok)
			require.Contains(t, text, "slo: 50ms")
			require.NoError(t, os.WriteFile(configuration, []byte(text), 0o600))
			run(t, filepath.Join(setting(t, "CONCH_BIN"), "conch"), "config", "check", configuration)

			page, err := os.ReadFile("../../deploy/prometheus/conch.rules.yml")
			require.NoError(t, err)
			var rules map[string]any
			require.NoError(t, yaml.Unmarshal(page, &rules))
			require.Equal(t, rules, kinds["PrometheusRule"]["spec"])
		})
	}
	// A tag may be a number to helm; of one with a fraction it does not have all digits.
	for tag, want := range map[string]string{"20260101": "20260101", `"24.10"`: "24.10", "24.10": ""} {
		file := filepath.Join(t.TempDir(), "values.yaml")
		require.NoError(t, os.WriteFile(file, []byte("image: {tag: "+tag+"}\n"), 0o600))
		out, err := render(t, "--values="+file)
		if want == "" {
			require.Error(t, err)
			continue
		}
		require.NoError(t, err)
		require.Contains(t, string(out), `image: "conch:`+want+`"`)
	}
	// Where replicas cannot reach each other, one serves, and nothing waits for the other to be ready.
	for _, alone := range [][]string{{"config.listen.tls.certificate=/tls/tls.crt", "config.listen.tls.key=/tls/tls.key"}, {"config.listen.reusePort=true"}} {
		out, err := render(t, append(alone, "mode=cluster")...)
		require.NoError(t, err)
		require.Contains(t, string(out), "replicas: 1\n", alone)
		require.Contains(t, string(out), "maxUnavailable: 100%", alone)
		require.NotContains(t, string(out), "PodDisruptionBudget", alone)
	}
	// A volume of another kind takes the place of the claim that is the default: a volume is of one kind.
	out, err := render(t, "mode=cluster", "cluster.models.volume.hostPath.path=/m", "models.volume.nfs.server=s", "models.volume.nfs.path=/r")
	require.NoError(t, err)
	require.Contains(t, string(out), "hostPath:")
	require.NotContains(t, string(out), "persistentVolumeClaim")
	// Certificates come from a volume of the user's, and probes ask over TLS where metrics do.
	out, err = render(t, "config.listen.tls.certificate=/tls/tls.crt", "config.listen.tls.key=/tls/tls.key", "config.listen.tls.metrics=true", "serviceMonitor.enabled=true",
		"extraVolumes[0].name=tls", "extraVolumes[0].secret.secretName=conch-tls", "extraVolumeMounts[0].name=tls", "extraVolumeMounts[0].mountPath=/tls")
	require.NoError(t, err)
	require.Equal(t, 3, strings.Count(string(out), "port: conch-metrics, scheme: HTTPS"))
	require.Contains(t, string(out), "scheme: https")
	require.Contains(t, string(out), "secretName: conch-tls")
	require.Contains(t, string(out), "mountPath: /tls")
	// The Pod has the time of the drain, and a minute for the servers' end, unless values say more.
	for settings, want := range map[string]string{
		"": "90", "config.limits=null": "90", "config.limits.drain=null": "90",
		"config.limits.drain=2m30s": "210", "config.limits.drain=1h2m": "3780", "config.limits.drain=1.5s": "62", "config.limits.drain=500ms": "61", "config.limits.drain=90000000us": "150",
		"config.limits.drain=0s":                                   "90", // conch takes it for none given
		"config.limits.drain=2m,terminationGracePeriodSeconds=120": "120",
		"mode=cluster,terminationGracePeriodSeconds=35":            "35",
	} {
		out, err := render(t, settings)
		require.NoError(t, err)
		require.Contains(t, string(out), "terminationGracePeriodSeconds: "+want+"\n", settings)
	}
	_, err = render(t, "mode=cluster", "--kube-version=1.29.4")
	require.Error(t, err)
	for _, wrong := range []string{"config.listen.tls.metrics=true,config.listen.tls.clientCA=/tls/ca.crt", "mode=neither", "mode=own,attach.service.name=triton", "attach.deployment=triton,attach.service.name=triton", "attach.patch=add", "attach.deployment=triton,attach.patch=both", "mode=own,attach.deployment=triton", "mode=cluster,attach.deployment=triton",
		"terminationGracePeriodSeconds=20",              // less than limits.drain
		"mode=cluster,terminationGracePeriodSeconds=34", // less than that and the preStop
		// What values.schema.json does not know.
		"replica=2", "image.tag=null", "cluster.podTemplates.spec=x", "image.pullPolicy=Sometimes", "replicas=two", "attach.service.name=a,attach.service.selector=b"} {
		_, err := render(t, wrong)
		require.Error(t, err, wrong)
	}
}
