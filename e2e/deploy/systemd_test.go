// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const unit = "../../deploy/systemd/conch.service"

// The score of systemd-analyze runs from 0, which is best, to 10. What is left of it is what GPUs and servers that outlive conch need:
// devices, /tmp, shared memory and a view of the processes. deploy/README.md says the score.
func TestUnitIsHardened(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("no systemd-analyze here")
	}
	report := run(t, "systemd-analyze", "security", "--offline=yes", "--no-pager", unit)
	m := regexp.MustCompile(`Overall exposure level for conch.service: ([0-9.]+)`).FindStringSubmatch(report)
	require.NotNil(t, m, report)
	score, err := strconv.ParseFloat(m[1], 64)
	require.NoError(t, err)
	require.LessOrEqual(t, score, 2.5, report)
	if strings.HasPrefix(run(t, "systemd-analyze", "--version"), "systemd 252 ") {
		page, err := os.ReadFile("../../deploy/README.md")
		require.NoError(t, err)
		require.Contains(t, string(page), m[1]+" of 10", "deploy/README.md states the score")
	}
}
