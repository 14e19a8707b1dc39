// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/config"
)

func TestParseEndpoints(t *testing.T) {
	for name, c := range map[string]struct {
		values  []string
		want    []config.Endpoint
		refused string
	}{
		"one":         {values: []string{"localhost:8001"}, want: []config.Endpoint{{GRPC: "localhost:8001"}}},
		"a list":      {values: []string{"a:1,b:2"}, want: []config.Endpoint{{GRPC: "a:1"}, {GRPC: "b:2"}}},
		"set twice":   {values: []string{"a:1", "b:2"}, want: []config.Endpoint{{GRPC: "a:1"}, {GRPC: "b:2"}}},
		"spelt out":   {values: []string{"grpc=a:1,http=a:2,metrics=off,grpc=b:3"}, want: []config.Endpoint{{GRPC: "a:1", HTTP: "a:2", Metrics: "off"}, {GRPC: "b:3"}}},
		"mixed":       {values: []string{"a:1,http=c:2"}, want: []config.Endpoint{{GRPC: "a:1", HTTP: "c:2"}}},
		"a writable":  {values: []string{"a:1,repository=/m"}, want: []config.Endpoint{{GRPC: "a:1", Repository: "/m"}}},
		"executions":  {values: []string{"a:1,executions=4"}, want: []config.Endpoint{{GRPC: "a:1", Executions: 4}}},
		"no number":   {values: []string{"a:1,executions=four"}, refused: "executions=four is not a number"},
		"no endpoint": {values: []string{"http=a:1"}, refused: "comes before the endpoint"},
		"misspelt":    {values: []string{"a:1,metric=a:2"}, refused: `did you mean "metrics"?`},
		"empty":       {values: []string{"a:1,,b:2"}, refused: "an address is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := config.ParseEndpoints(c.values)
			if c.refused != "" {
				require.ErrorContains(t, err, c.refused)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

// A team's first start: no file, no repository, nothing of theirs is changed.
func TestAttachDefaults(t *testing.T) {
	c, err := config.Load("", func(c *config.Config) {
		c.Driver.Kind, c.Driver.Endpoints = config.DriverAttach, []config.Endpoint{{GRPC: "localhost:8001"}}
	}, config.Environment{})
	require.NoError(t, err)
	require.Equal(t, config.ModeObserve, c.Mode)
	require.Equal(t, []config.Endpoint{{GRPC: "localhost:8001", HTTP: "localhost:8000", Metrics: "localhost:8002"}}, c.Driver.Endpoints)
	require.Equal(t, ":8101", c.Listen.GRPC, "8001 is the server's own")
	require.Equal(t, config.Probe{Period: config.Duration(time.Second), Deadline: config.Duration(5 * time.Second)}, c.Driver.Probe)
}

func TestAttachProblems(t *testing.T) {
	for name, c := range map[string]struct{ text, path, problem string }{
		"no endpoints":        {"driver: {kind: attach}", "driver.endpoints", "is missing"},
		"two lists":           {"driver: {kind: attach, endpoints: [{grpc: a:1}], service: {name: triton}}", "driver.endpoints", "and driver.service both name the servers"},
		"executions":          {"driver: {kind: attach, endpoints: [{grpc: a:1, executions: 65}]}", "driver.endpoints[0].executions", "65 is not from 1 to 64"},
		"executions of all":   {"driver: {kind: attach, service: {name: triton, executions: -1}}", "driver.service.executions", "-1 is not from 1 to 64"},
		"two choices":         {"driver: {kind: attach, service: {name: triton, selector: app=triton}}", "driver.service.selector", "and driver.service.name both choose Services"},
		"no Service":          {"driver: {kind: attach, service: {namespace: serving}}", "driver.service.name", "is missing"},
		"GPUs of a Service":   {"gpus: [{type: T4, count: 2}]\ndriver: {kind: attach, service: {name: triton}}", "gpus", "has to name one GPU, which each of the servers"},
		"a Service's models":  {"repository: /m\ndriver: {kind: attach, service: {name: triton}}", "repository", "those behind driver.service"},
		"a Service of ours":   {"repository: /m\ndriver: {kind: process, service: {name: triton}}", "driver.service", "belong to driver.kind attach"},
		"no port":             {"driver: {kind: attach, endpoints: [{grpc: triton}]}", "driver.endpoints[0].grpc", `"triton" is not host:port`},
		"no host":             {`driver: {kind: attach, endpoints: [{grpc: ":8001"}]}`, "driver.endpoints[0].grpc", "is not host:port"},
		"nothing beside":      {"driver: {kind: attach, endpoints: [{grpc: a:1, metrics: off}]}", "driver.endpoints[0].http", "no port beside that of a:1"},
		"a wrong door":        {"driver: {kind: attach, endpoints: [{grpc: a:1001, http: b}]}", "driver.endpoints[0].http", `"b" is not host:port`},
		"a free port":         {"driver: {kind: attach, endpoints: [{grpc: a:0, http: off, metrics: off}]}", "driver.endpoints[0].grpc", "not a number from 1"},
		"gRPC is off":         {"driver: {kind: attach, endpoints: [{grpc: off, http: off, metrics: off}]}", "driver.endpoints[0].grpc", "is not host:port"},
		"one server twice":    {"driver: {kind: attach, endpoints: [{grpc: a:1001}, {grpc: a:1001}]}", "driver.endpoints[1].grpc", "that of driver.endpoints[0] too"},
		"an executable":       {"driver: {kind: attach, endpoints: [{grpc: a:1001}], tritonserver: /x}", "driver.tritonserver", "starts no tritonserver"},
		"not for others":      {"repository: /m\ndriver: {kind: process, endpoints: [{grpc: a:1001}]}", "driver.endpoints", "belong to driver.kind attach"},
		"some writable":       {"repository: /m\ndriver: {kind: attach, endpoints: [{grpc: a:1001, repository: /a}, {grpc: b:1001}]}", "driver.endpoints", "1 of 2"},
		"one repository":      {"repository: /m\ndriver: {kind: attach, endpoints: [{grpc: a:1001, repository: /a}, {grpc: b:1001, repository: /a}]}", "driver.endpoints[1].repository", "that of driver.endpoints[0] too"},
		"nothing to stage":    {"driver: {kind: attach, endpoints: [{grpc: a:1001, repository: /a}]}", "repository", "is missing"},
		"nowhere to stage":    {"repository: /m\ndriver: {kind: attach, endpoints: [{grpc: a:1001}]}", "repository", "has no meaning"},
		"a relative place":    {"repository: /m\ndriver: {kind: attach, endpoints: [{grpc: a:1001, repository: a}]}", "driver.endpoints[0].repository", "not an absolute path"},
		"too few GPUs":        {"gpus: [{type: T4}]\ndriver: {kind: attach, endpoints: [{grpc: a:1001}, {grpc: b:1001}]}", "gpus", "names 1 and there are 2"},
		"probes all the time": {"driver: {kind: attach, endpoints: [{grpc: a:1001}], probe: {period: -1s}}", "driver.probe.period", "not longer than zero"},
	} {
		t.Run(name, func(t *testing.T) {
			parsed, err := config.Parse("conch.yaml", []byte(c.text))
			require.NoError(t, err)
			parsed.Provision(config.Environment{})
			var invalid *config.InvalidError
			require.True(t, errors.As(parsed.Validate(config.Environment{}), &invalid))
			var texts []string
			for _, p := range invalid.Problems {
				if p.Path == c.path {
					texts = append(texts, p.Text)
				}
			}
			require.Len(t, texts, 1, "%v", invalid)
			require.Contains(t, texts[0], c.problem)
		})
	}
}

// One mistake is one problem: what is derived from it is not reported too.
func TestAWrongAddressIsOneProblem(t *testing.T) {
	_, err := config.Load("", func(c *config.Config) {
		c.Driver.Kind, c.Driver.Endpoints = config.DriverAttach, []config.Endpoint{{GRPC: "nonsense"}}
	}, config.Environment{})
	var invalid *config.InvalidError
	require.True(t, errors.As(err, &invalid))
	require.Len(t, invalid.Problems, 1, "%v", err)
}
