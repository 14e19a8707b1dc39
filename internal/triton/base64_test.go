// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package triton_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/triton"
)

func TestLenientBase64(t *testing.T) {
	for text, want := range map[string]string{"": "", "YQ==": "a", "YQ": "a", "Y\nQ=\r\n=": "a", "Y!W!I": "ab", "YWJ": "ab", "Y": "", "!!!": ""} {
		require.Equal(t, want, string(triton.LenientBase64(text)), "%q", text)
	}
}
