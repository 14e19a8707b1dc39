// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/builtin"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/conformance"
	"github.com/conch-serving/conch/plugins/policy/pack/packtest"
)

// The test binary is conch-policies where this is set.
const selfVariable = "CONCH_TEST_POLICIES"

func TestMain(m *testing.M) {
	if os.Getenv(selfVariable) != "" {
		main()
	}
	os.Exit(m.Run())
}

// Every built-in policy passes the suite as a process, served as Conch does it.
func TestConformanceAsProcess(t *testing.T) {
	t.Setenv(selfVariable, "1")
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	self, err := os.Executable()
	require.NoError(t, err)
	for _, name := range builtin.Names() {
		t.Run(name, func(t *testing.T) {
			conformance.Run(t, conformance.Options{Snapshots: packtest.Profiled(), New: func(t *testing.T) policy.Policy {
				return conformance.Process(t, self, name)
			}})
		})
	}
}

func TestNamesAgree(t *testing.T) {
	for _, name := range builtin.Names() {
		p, ok := builtin.New(name)
		require.True(t, ok)
		d, err := p.Describe(t.Context())
		require.NoError(t, err)
		require.Equal(t, name, d.GetName())
	}
	_, ok := builtin.New("nosuch")
	require.False(t, ok)
}

func TestCalledByAPerson(t *testing.T) {
	for _, test := range []struct {
		args   []string
		status int
		stdout string
		says   string
	}{
		{[]string{"-list"}, 0, strings.Join(builtin.Names(), "\n") + "\n", ""},
		{nil, 2, "", "conch-policies NAME"},
		{[]string{"nosuch"}, 2, "", "no built-in policy \"nosuch\""},
		{[]string{"static"}, 2, "", "name it in conch.yaml"},
		{[]string{"static", "more"}, 2, "", "static     Models lie"},
	} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, test.status, run(test.args, false, &stdout, &stderr), "%v", test.args)
		require.Equal(t, test.stdout, stdout.String())
		require.Contains(t, stderr.String(), test.says)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "static")
	cmd.Env = append(os.Environ(), selfVariable+"=1")
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Run(), &exit)
	require.Equal(t, 2, exit.ExitCode())
}
