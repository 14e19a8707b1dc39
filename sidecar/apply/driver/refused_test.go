// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"
)

// What repo's validation says that Triton refuses, a real Triton must refuse.
func TestARealServerRefusesWhatValidationRefuses(t *testing.T) {
	t.Parallel()
	server := os.Getenv("CONCH_TRITONSERVER")
	if server == "" {
		t.Skip("CONCH_TRITONSERVER names no tritonserver")
	}
	archive, err := txtar.ParseFile("../../../repo/testdata/refused.txtar")
	require.NoError(t, err)
	w := newWorld(t, server, nil, nil)
	hangs := map[string]bool{"version_without_a_file": true}
	var names []string
	for _, f := range archive.Files {
		name, path, _ := strings.Cut(f.Name, "/")
		if path == "want" {
			names = append(names, name)
			continue
		}
		// The model has the name of its case here.
		path = filepath.Join(w.repo, name, strings.TrimPrefix(path, "m/"))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, f.Data, 0o644))
	}
	p := w.start()
	for _, name := range names {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if hangs[name] {
			cancel()
			ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		}
		err := p.Load(ctx, name)
		cancel()
		var refused *LoadError
		if !errorsAs(t, err, &refused) {
			t.Errorf("%s: Triton loads it", name)
			continue
		}
		require.Equal(t, hangs[name], refused.Hung, "%s: %v", name, err)
		t.Logf("%s: %v", name, refused.Err)
	}
	require.NoError(t, p.Kill(t.Context()))
}

func errorsAs(t *testing.T, err error, target **LoadError) bool {
	t.Helper()
	if err == nil {
		return false
	}
	require.ErrorAs(t, err, target)
	return true
}
