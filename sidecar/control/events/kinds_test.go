// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package events_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/control/events"
)

// TestKinds: every constant of kinds.go is in Kinds, once.
func TestKinds(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "kinds.go", nil, 0)
	require.NoError(t, err)
	var declared []string
	ast.Inspect(file, func(n ast.Node) bool {
		if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			if text, err := strconv.Unquote(literal.Value); err == nil {
				declared = append(declared, text)
			}
		}
		return true
	})
	var listed []string
	for _, kind := range events.Kinds() {
		listed = append(listed, string(kind))
	}
	require.ElementsMatch(t, declared[1:], listed, "the first string is the import")
}
