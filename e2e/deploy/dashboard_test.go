// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/minitriton"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/zoo"
)

// setting is a variable that the Makefile sets.
func setting(t *testing.T, name string) string {
	t.Helper()
	value := os.Getenv(name)
	require.NotEmpty(t, value, "%s is not set: run `make deploy`", name)
	return value
}

// run starts a program, or fails with what it wrote.
func run(t *testing.T, program string, arguments ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, arguments...).CombinedOutput()
	require.NoError(t, err, "%s %s\n%s", program, strings.Join(arguments, " "), out)
	return string(out)
}

func TestRulesDoWhatTheySay(t *testing.T) {
	promtool := filepath.Join(setting(t, "CONCH_PROMETHEUS"), "promtool")
	run(t, promtool, "check", "rules", "--lint-fatal", "../../deploy/prometheus/conch.rules.yml")
	run(t, promtool, "test", "rules", "../../deploy/prometheus/conch.test.yml")
}

// Whoever an alert sends to a command of tritonctl finds it.
func TestAnnotationsNameCommandsThatThereAre(t *testing.T) {
	for _, file := range []string{"prometheus/conch.rules.yml", "grafana/conch.json"} {
		page, err := os.ReadFile(filepath.Join("../../deploy", file))
		require.NoError(t, err)
		commands := regexp.MustCompile(`"tritonctl ([a-z ]+)\\?"`).FindAllStringSubmatch(strings.ReplaceAll(string(page), `\"`, `"`), -1)
		require.NotEmpty(t, commands)
		for _, c := range commands {
			words := strings.Fields(c[1])
			help := run(t, filepath.Join(setting(t, "CONCH_BIN"), "tritonctl"), append(words, "--help")...)
			require.Regexp(t, `(?m)^  tritonctl `+strings.Join(words, " ")+`\b`, help, "%s names `tritonctl %s`", file, c[1])
		}
	}
}

// The dashboard's queries are asked of a Prometheus that reads a conch under load, and its rules are evaluated there.
func TestDashboardShowsAConch(t *testing.T) {
	models := rig.Copies(zoo.Profile{Model: "quick", GPUType: zoo.A100, Alpha: time.Millisecond, Beta: 2 * time.Millisecond, SLO: time.Second}, 2, 1, 8)
	c, err := rig.StartConch(t.Context(), rig.ConchOptions{Bin: setting(t, "CONCH_BIN"), Models: models, GPUs: 2})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	caller, err := loadgen.NewGRPC(c.Endpoints(), models.Load(), loadgen.Emulated(16))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, caller.Close()) })
	ctx, stop := context.WithCancel(t.Context())
	loaded := make(chan error, 1)
	go func() {
		_, err := loadgen.Closed(ctx, 4, 10*time.Minute, caller, minitriton.SystemClock())
		loaded <- err
	}()
	t.Cleanup(func() { stop(); <-loaded })

	p := startPrometheus(t, c.Metrics)
	require.Eventually(t, func() bool {
		return len(p.query(t, `sum(rate(conch_requests_total{result="ok"}[10s])) > 0`)) == 1
	}, 2*time.Minute, 200*time.Millisecond, "Prometheus reads the conch")

	// What a conch that nothing is wrong with does not have, by the beginning of the query.
	empty := []string{
		`sum by (reason) (rate(conch_dropped_requests_total`, `sum by (reason) (rate(conch_edge_refused_total`,
		`conch_advice_gpus`, `conch_gpu_idle_share`, `sum by (step) (increase(conch_apply_step_failures_total`,
	}
	for _, q := range queries(t) {
		absent := false
		for _, e := range empty {
			absent = absent || strings.HasPrefix(q, e)
		}
		concrete := strings.NewReplacer("$__rate_interval", "10s", "$instance", ".*", "$model", ".*").Replace(q)
		if absent {
			p.query(t, concrete)
			continue
		}
		require.Eventually(t, func() bool { return len(p.query(t, concrete)) > 0 }, time.Minute, 200*time.Millisecond, "no data: %s", q)
	}

	var rules struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError, State string }
		}
	}
	require.Eventually(t, func() bool {
		p.get(t, "/api/v1/rules", nil, &rules)
		for _, g := range rules.Groups {
			for _, r := range g.Rules {
				require.Empty(t, r.LastError, r.Name)
				if r.Health != "ok" {
					return false
				}
			}
		}
		return len(rules.Groups) == 4
	}, time.Minute, 200*time.Millisecond, "every rule is evaluated")
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			require.NotEqual(t, "firing", r.State, "%s fires, and nothing is wrong", r.Name)
		}
	}
}

// queries are those of all panels, annotations and variables of the dashboard.
func queries(t *testing.T) (all []string) {
	page, err := os.ReadFile("../../deploy/grafana/conch.json")
	require.NoError(t, err)
	var dashboard struct {
		Panels []struct {
			Targets []struct{ Expr string }
		}
		Annotations struct{ List []struct{ Expr string } }
		Templating  struct{ List []struct{ Definition string } }
	}
	require.NoError(t, json.Unmarshal(page, &dashboard))
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			all = append(all, target.Expr)
		}
	}
	for _, a := range dashboard.Annotations.List {
		// Its answer is empty unless a plan was applied: what it reads is asked for.
		all = append(all, strings.TrimSuffix(a.Expr, " > 0"))
	}
	for _, v := range dashboard.Templating.List {
		if v.Definition != "" {
			m := regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`).FindStringSubmatch(v.Definition)
			require.NotNil(t, m, v.Definition)
			all = append(all, fmt.Sprintf(`%s{%s!=""}`, m[1], m[2]))
		}
	}
	require.Greater(t, len(all), 30)
	return all
}

// instance is a running Prometheus.
type instance struct{ address string }

func startPrometheus(t *testing.T, target string) instance {
	dir := t.TempDir()
	rules, err := filepath.Abs("../../deploy/prometheus/conch.rules.yml")
	require.NoError(t, err)
	configuration := filepath.Join(dir, "prometheus.yml")
	require.NoError(t, os.WriteFile(configuration, fmt.Appendf(nil, `global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%q]
scrape_configs:
  - job_name: conch
    static_configs: [{targets: [%q]}]
`, rules, target), 0o600))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := instance{listener.Addr().String()}
	require.NoError(t, listener.Close())
	log, err := os.Create(filepath.Join(dir, "log"))
	require.NoError(t, err)
	server := exec.CommandContext(t.Context(), filepath.Join(setting(t, "CONCH_PROMETHEUS"), "prometheus"),
		"--config.file", configuration, "--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", p.address)
	server.Stderr = log
	require.NoError(t, server.Start())
	t.Cleanup(func() {
		require.NoError(t, server.Process.Kill())
		_ = server.Wait()
		require.NoError(t, log.Close())
		if t.Failed() {
			said, _ := os.ReadFile(log.Name())
			t.Logf("Prometheus's log:\n%s", said)
		}
	})
	require.Eventually(t, func() bool {
		r, err := http.Get("http://" + p.address + "/-/ready") //nolint:noctx // one second at most, on this machine
		if err != nil {
			return false
		}
		defer r.Body.Close()
		return r.StatusCode == http.StatusOK
	}, time.Minute, 100*time.Millisecond, "Prometheus is ready")
	return p
}

// get asks the HTTP API.
func (p instance) get(t *testing.T, path string, parameters url.Values, into any) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.address+path+"?"+parameters.Encode(), nil)
	require.NoError(t, err)
	r, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer r.Body.Close()
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	require.NoError(t, json.NewDecoder(r.Body).Decode(&answer))
	require.Equal(t, "success", answer.Status, "%s %v: %s", path, parameters, answer.Error)
	require.NoError(t, json.Unmarshal(answer.Data, into))
}

// query is the answer of one PromQL query at present, sample by sample.
func (p instance) query(t *testing.T, q string) []json.RawMessage {
	t.Helper()
	var data struct{ Result []json.RawMessage }
	p.get(t, "/api/v1/query", url.Values{"query": {q}}, &data)
	return data.Result
}
