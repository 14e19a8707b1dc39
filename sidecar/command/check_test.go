// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package command_test

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/command"
)

// conch runs a command line of conch and gives what it prints.
func conch(t *testing.T, arguments ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	c := command.New(command.Process{Stdout: &out, Stderr: io.Discard})
	c.SetArgs(arguments)
	err := c.ExecuteContext(t.Context())
	return out.String(), err
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
	require.ErrorContains(t, err, `conch has no command "bogus"; it has: completion, config, init, stop (conch --help)`)
	_, err = conch(t, "config", "chek")
	require.ErrorContains(t, err, `conch config has no command "chek"; it has: check (conch config --help)`)
}

// TestStopOfWhich: without a directory there is no saying which conch is meant.
func TestStopOfWhich(t *testing.T) {
	_, err := conch(t, "stop")
	require.ErrorContains(t, err, "which conch? name its conch.yaml with --config, or its state directory with --state")
}
