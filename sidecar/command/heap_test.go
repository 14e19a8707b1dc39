// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSlackLeavesATunedHeapAlone(t *testing.T) {
	env := map[string]string{}
	getenv := func(name string) string { return env[name] }
	require.Len(t, slack(getenv), collectorSlack)
	env["GOMEMLIMIT"] = "100MiB"
	require.Empty(t, slack(getenv))
	env["GOMEMLIMIT"], env["GOGC"] = "", "200"
	require.Empty(t, slack(getenv))
}
