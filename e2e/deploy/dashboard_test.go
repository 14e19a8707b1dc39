// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/loadgen"
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

// Every command of tritonctl that an alert or a panel names exists.
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

// The dashboard's queries are asked of a Prometheus that reads three conchs under load: one that nothing is wrong with, one that is in trouble, and
// one whose GPU is not emulated. Each query has an answer, each metric that a query or a rule names has samples, every rule is evaluated, and none
// fires for the first.
func TestDashboardShowsAConch(t *testing.T) {
	well, trouble, physical := healthy(t), inTrouble(t), withAGPU(t)
	p := startPrometheus(t, well.Metrics, trouble.Metrics, physical.Metrics)
	require.Eventually(t, func() bool {
		return len(p.query(t, `sum by (instance) (rate(conch_requests_total{result="ok"}[10s])) > 0`)) >= 2
	}, 2*time.Minute, 200*time.Millisecond, "Prometheus reads the conchs")

	for _, q := range queries(t) {
		concrete := strings.NewReplacer("$__rate_interval", "10s", "$instance", ".*", "$model", ".*").Replace(q)
		require.Eventually(t, func() bool { return len(p.query(t, concrete)) > 0 }, time.Minute, 200*time.Millisecond, "no data: %s", q)
	}
	for _, name := range metrics(t) {
		require.Eventually(t, func() bool { return len(p.query(t, "count("+name+")")) > 0 }, time.Minute, 200*time.Millisecond, "no samples: %s", name)
	}

	var rules struct {
		Groups []struct {
			Rules []struct {
				Name, Health, LastError string
				Alerts                  []struct {
					State  string
					Labels map[string]string
				}
			}
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
			for _, a := range r.Alerts {
				require.False(t, a.State == "firing" && a.Labels["instance"] == well.Metrics, "%s fires, and nothing is wrong", r.Name)
			}
		}
	}
}

// quick is a model that is never late.
func quick() zoo.Profile {
	return zoo.Profile{Model: "quick", GPUType: zoo.A100, Alpha: time.Millisecond, Beta: 2 * time.Millisecond, SLO: time.Second}
}

// serve starts a conch and calls its models for as long as the test runs, by so many callers.
func serve(t *testing.T, o rig.ConchOptions, models rig.Models, callers int) *rig.Conch {
	t.Helper()
	o.Bin = setting(t, "CONCH_BIN")
	c, err := rig.StartConch(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	caller, err := loadgen.NewGRPC(c.Endpoints(), models.Load(), loadgen.Emulated(16))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, caller.Close()) })
	ctx, stop := context.WithCancel(t.Context())
	loaded := make(chan error, 1)
	go func() {
		_, err := loadgen.Closed(ctx, callers, 10*time.Minute, caller, clock.System())
		loaded <- err
	}()
	t.Cleanup(func() { stop(); <-loaded })
	return c
}

func healthy(t *testing.T) *rig.Conch {
	models := rig.Copies(quick(), 2, 1, 8)
	return serve(t, rig.ConchOptions{Models: models, GPUs: 2}, models, 4)
}

// inTrouble has a model that does not load, one that cannot be in time, and clients that open more connections than they may.
func inTrouble(t *testing.T) *rig.Conch {
	dir := t.TempDir()
	slow := zoo.Profile{Model: "late", GPUType: zoo.A100, Alpha: 10 * time.Millisecond, Beta: 20 * time.Millisecond, SLO: 25 * time.Millisecond}
	late := rig.Copies(slow, 1, 1, 8)
	require.NoError(t, zoo.Write(dir, zoo.Model{Name: late.Names()[0], MaxBatchSize: 8, Profile: slow}))
	broken := filepath.Join(dir, "broken")
	require.NoError(t, os.MkdirAll(filepath.Join(broken, "1"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(broken, "config.pbtxt"), []byte(`
		name: "broken" backend: "python" max_batch_size: 8
		input [{name: "INPUT" data_type: TYPE_FP32 dims: [16]}] output [{name: "OUTPUT" data_type: TYPE_FP32 dims: [16]}]
		parameters {key: "conch_builtin" value {string_value: "there is none"}}`), 0o600))
	c := serve(t, rig.ConchOptions{
		Repository: dir, Await: late.Names(), GPUs: 1, Late: "drop", Settings: map[string]any{"limits": map[string]any{"connections": 8}},
	}, late, 4)
	ended := make(chan struct{})
	var opening sync.WaitGroup
	opening.Go(func() {
		for {
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", c.HTTP)
			if err != nil {
				return // the test ends
			}
			defer conn.Close() // with the test: until then it is held
			select {
			case <-ended:
				return
			case <-time.After(200 * time.Millisecond):
			}
		}
	})
	t.Cleanup(func() { close(ended); opening.Wait() })
	return c
}

// impatient calls a conch's first model, and gives each call up before it can be answered.
func impatient(t *testing.T, c *rig.Conch, models rig.Models) {
	caller, err := loadgen.NewGRPC(c.Endpoints(), models.Load(), loadgen.Emulated(16))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, caller.Close()) })
	ended := make(chan struct{})
	var calling sync.WaitGroup
	calling.Go(func() {
		for sequence := uint64(1); ; sequence++ {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Millisecond)
			_ = caller.Call(ctx, 0, sequence)
			cancel()
			select {
			case <-ended:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	t.Cleanup(func() { close(ended); calling.Wait() })
}

// withAGPU has one that conch.yaml names and does not call emulated: its server is a process, here minitriton. It has a caller that gives up, too.
func withAGPU(t *testing.T) *rig.Conch {
	server := filepath.Join(t.TempDir(), "tritonserver")
	require.NoError(t, os.WriteFile(server, fmt.Appendf(nil, "#!/bin/sh\nexec '%s' minitriton \"$@\"\n", filepath.Join(setting(t, "CONCH_BIN"), "conch-bench")), 0o700)) //nolint:gosec // a program
	models := rig.Copies(quick(), 1, 1, 8)
	c := serve(t, rig.ConchOptions{Server: server, Models: models, GPUs: 1, Settings: map[string]any{"gpus": []map[string]any{{"type": zoo.A100, "memory": "1GiB"}}}}, models, 1)
	impatient(t, c, models)
	return c
}

// metrics are those of conch's that queries and rules name.
func metrics(t *testing.T) []string {
	names := map[string]bool{}
	rules, err := os.ReadFile("../../deploy/prometheus/conch.rules.yml")
	require.NoError(t, err)
	for _, text := range append(queries(t), string(rules)) {
		for _, name := range regexp.MustCompile(`\bconch_[a-z_]+[a-z]\b`).FindAllString(text, -1) {
			names[name] = true
		}
	}
	require.Greater(t, len(names), 20)
	return slices.Sorted(maps.Keys(names))
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

func startPrometheus(t *testing.T, targets ...string) instance {
	dir := t.TempDir()
	rules, err := filepath.Abs("../../deploy/prometheus/conch.rules.yml")
	require.NoError(t, err)
	configuration := filepath.Join(dir, "prometheus.yml")
	require.NoError(t, os.WriteFile(configuration, fmt.Appendf(nil, `global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%q]
scrape_configs:
  - job_name: conch
    static_configs: [{targets: ["%s"]}]
`, rules, strings.Join(targets, `", "`)), 0o600))
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
			text, _ := os.ReadFile(log.Name())
			t.Logf("Prometheus's log:\n%s", text)
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
