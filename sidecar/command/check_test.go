// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package command_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/static"
	"github.com/conch-serving/conch/sidecar/command"
	"github.com/conch-serving/conch/sidecar/policyhost/confine"
)

// TestMain is the launcher of policies and the policy static where conch starts this test program as these.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == "launch-policy":
		fmt.Fprintln(os.Stderr, confine.Main(os.Args[2:]))
		os.Exit(1)
	case policy.Hosted(os.Getenv):
		policy.Serve(static.New())
	default:
		goleak.VerifyTestMain(m)
	}
}

// conch runs a command line of conch and gives what it prints.
func conch(t *testing.T, arguments ...string) (string, error) {
	t.Helper()
	out, _, err := conchSays(t, arguments...)
	return out, err
}

// conchSays gives what it writes to stderr, too.
func conchSays(t *testing.T, arguments ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	c := command.New(command.Process{Stdout: &out, Stderr: &errs})
	c.SetArgs(arguments)
	err = c.ExecuteContext(t.Context())
	return out.String(), errs.String(), err
}

// TestConfigCheckLooksAtTheMachine: what is not there, is misspelt, or would have no place.
func TestConfigCheckLooksAtTheMachine(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	repository := t.TempDir()
	for _, name := range []string{"resnet50", "bert"} {
		require.NoError(t, os.MkdirAll(filepath.Join(repository, name, "1"), 0o700))
		config := `backend: "python" max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: 1 } output { name: "y" data_type: TYPE_FP32 dims: 1 }`
		require.NoError(t, os.WriteFile(filepath.Join(repository, name, "config.pbtxt"), []byte(config), 0o600))
	}
	const emulated = "driver: {kind: embedded}\ngpus: [{type: T4, count: 2}]\n"
	for name, c := range map[string]struct {
		yaml     string // of static, with this repository unless it names another
		warnings []string
		notes    string
		problem  string
	}{
		"nothing": {yaml: emulated},
		"no repository": {
			yaml:     emulated + "repository: /nowhere\n",
			warnings: []string{"line 4: repository: open /nowhere: no such file or directory; name the directory of the model repository"},
		},
		"no tritonserver": {
			yaml: "gpus: [{type: T4, emulated: true}]\ndriver:\n  tritonserver: /nowhere/tritonserver\n",
			warnings: []string{`line 4: driver.tritonserver: process driver: tritonserver: exec: "/nowhere/tritonserver": stat /nowhere/tritonserver: no such file or directory; ` +
				"name its path with driver.tritonserver or --tritonserver, or attach to servers that run with --attach"},
		},
		"no policy": {
			yaml:     emulated + "policy: {name: mine, executable: /nowhere/mine}\n",
			warnings: []string{`line 4: policy.executable: policy mine: the policy's process did not start: exec: "/nowhere/mine": stat /nowhere/mine: no such file or directory`},
		},
		"a parameter that there is not": {
			yaml:    emulated + "policy:\n  name: static\n  executable: " + self + "\n  parameters: {placemnt: {bert: gpu0}}\n",
			problem: "line 7: policy.parameters: policy static: bad policy parameter: ",
		},
		"a parameter that does not parse": {
			yaml:    emulated + "policy: {name: static, executable: " + self + ", parameters: {partitions: lots}}\n",
			problem: `line 4: policy.parameters: policy static: bad policy parameter: `,
		},
		"a certificate that there is not": {
			yaml:     emulated + "listen:\n  tls: {certificate: /nowhere/c.pem, key: /nowhere/k.pem}\n",
			warnings: []string{"line 5: listen.tls: listen.tls.certificate: open /nowhere/c.pem: no such file or directory"},
		},
		"Pods without models": {
			yaml:    "driver: {kind: kubernetes, kubernetes: {image: triton, models: {path: /models}}}\n",
			problem: "line 2: driver.kubernetes: models.volume is missing",
		},
		"Pods with a volume of no kind": {
			yaml:    "driver: {kind: kubernetes, kubernetes: {image: triton, models: {path: /models, volume: {persistentVolumeClam: {claimName: m}}}}}\n",
			problem: `line 2: driver.kubernetes: models.volume: json: unknown field "persistentVolumeClam"`,
		},
		"a misspelt model": {
			yaml:     emulated + "models:\n  resnet5O: {slo: 5ms}\n",
			warnings: []string{`line 5: models.resnet5O: there is no such model, so that this says nothing; did you mean "resnet50"?`},
		},
		"a placement on a GPU that there is not": {
			yaml: emulated + "policy: {name: static, executable: " + self + ", parameters: {placement: {bert: gpu9, resnet50: [gpu0, gpu7], bret: gpu0}}}\n",
			warnings: []string{"models: bert would have no place, or fewer than it needs: 0/1 partitions: 1 unavailable; " +
				"parameter placement names gpu9, which is no GPU or partition here; there are gpu0, gpu1",
				`line 4: policy.parameters: parameter placement names the model "bret", which the repository does not have; did you mean "bert"?`},
			notes: "policy static: bert: parameter placement names gpu9, which is no GPU or partition here; there are gpu0, gpu1\n" +
				"policy static: resnet50: parameter placement names gpu7, which is no GPU or partition here; there are gpu0, gpu1\n",
		},
		"a misspelt model in a placement": {
			yaml:     emulated + "policy: {name: static, executable: " + self + ", parameters: {placement: {bert: gpu0, resnet5O: gpu1}}}\n",
			warnings: []string{`line 4: policy.parameters: parameter placement names the model "resnet5O", which the repository does not have; did you mean "resnet50"?`},
		},
		"a placement of a model that loads on demand": {
			yaml: emulated + "models: {bert: {load: demand}}\npolicy: {name: static, executable: " + self + ", parameters: {placement: {bert: gpu0}}}\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(c.yaml, "repository:") {
				c.yaml += "repository: " + repository + "\n"
			}
			if !strings.Contains(c.yaml, "policy:") {
				c.yaml += "policy: {name: static, executable: " + self + "}\n"
			}
			file := filepath.Join(t.TempDir(), "conch.yaml")
			require.NoError(t, os.WriteFile(file, []byte("apiVersion: conch/v1\n"+c.yaml), 0o600))
			out, errs, err := conchSays(t, "config", "check", file)
			if c.problem != "" {
				require.ErrorContains(t, err, c.problem)
				require.Empty(t, out)
				return
			}
			require.NoError(t, err)
			require.Contains(t, out, "is valid")
			want := ""
			for _, w := range c.warnings {
				want += "warning: " + w + "\n"
			}
			require.Equal(t, want+c.notes, errs)
			_, _, err = conchSays(t, "config", "check", "--strict", file)
			require.Equal(t, len(c.warnings) > 0, err != nil, "%v", err)
		})
	}
}

// TestConfigCheckKnowsThePolicies: those that conch-policies, beside conch, lists. A policy with a program of its own may have any name, and where
// there is no conch-policies the name is left to the start.
func TestConfigCheckKnowsThePolicies(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	self, err = filepath.EvalSymlinks(self)
	require.NoError(t, err)
	check := func(policy string) (string, error) {
		file := filepath.Join(t.TempDir(), "conch.yaml")
		require.NoError(t, os.WriteFile(file, []byte("apiVersion: conch/v1\nrepository: /models\npolicy: "+policy+"\n"), 0o600))
		return conch(t, "config", "check", file)
	}
	said, err := check("{name: nope}")
	require.NoError(t, err)
	require.Contains(t, said, "is valid")

	policies := filepath.Join(filepath.Dir(self), "conch-policies")
	require.NoError(t, os.WriteFile(policies, []byte("#!/bin/sh\n[ \"$1\" = -list ] && echo conch && echo static\n"), 0o700)) //nolint:gosec // a program
	t.Cleanup(func() { _ = os.Remove(policies) })
	_, err = check("{name: nope}")
	require.ErrorContains(t, err, `line 3: policy.name: there is no policy "nope"; there are conch, static. One of your own needs policy.executable`)
	for _, valid := range []string{"{name: conch}", "{name: nope, executable: /opt/nope}"} {
		said, err = check(valid)
		require.NoError(t, err, valid)
		require.Contains(t, said, "is valid")
	}
}

// TestAMisspeltCommand is refused with those there are.
func TestAMisspeltCommand(t *testing.T) {
	_, err := conch(t, "bogus")
	require.ErrorContains(t, err, `conch has no command "bogus"; it has: completion, config, init, stop`)
	_, err = conch(t, "config", "chek")
	require.ErrorContains(t, err, `conch config has no command "chek" (did you mean check?); it has: check`)
}

// TestExitStatus: scripts tell a wrong command line from a conch that failed, as they do with tritonctl.
func TestExitStatus(t *testing.T) {
	for line, want := range map[string]int{
		"--version": 0, "config check": 2, "--bogus": 2, "bogus": 2, "config chek": 2, "stop": 2, "stop now": 2, "--attach bogus=nowhere:1": 2, "config check /nowhere": 1,
	} {
		_, err := conch(t, strings.Fields(line)...)
		require.Equal(t, want, command.ExitStatus(err), "%s: %v", line, err)
	}
}

// TestStopOfWhich: without a directory there is no saying which conch is meant.
func TestStopOfWhich(t *testing.T) {
	_, err := conch(t, "stop")
	require.ErrorContains(t, err, "which conch? name its conch.yaml with --config, or its state directory with --state")
}
