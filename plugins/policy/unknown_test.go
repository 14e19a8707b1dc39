// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
)

func TestARemarkOfAnUnknownModelIsReadAgain(t *testing.T) {
	for _, name := range []string{"bert", `a "b" names the model "c", which the repository does not have`, "ü\n"} {
		parameter, model := policy.Unknown("placement", name).UnknownModel()
		require.Equal(t, []string{"placement", name}, []string{parameter, model})
	}
	for _, other := range []*policy.Reason{nil, policy.Short("bert", 3), {Text: "parameter placement names gpu9, which is no GPU"}, {Text: "parameter x names the model bert, which the repository does not have"}} {
		parameter, model := other.UnknownModel()
		require.Empty(t, parameter+model)
	}
}
