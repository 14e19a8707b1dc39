// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/console"
)

// most is what all files together may have, compressed.
const most = 100_000

var handler = console.New()

func fetch(t *testing.T, path string, header http.Header) *http.Response {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, console.Path+path, nil)
	r.Header = header
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w.Result()
}

// names are the files of the console by their paths; "" is the page.
func names(t *testing.T) []string {
	t.Helper()
	all := []string{"look.css"}
	require.NoError(t, fs.WalkDir(os.DirFS("assets"), ".", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			all = append(all, strings.TrimSuffix(name, "index.html"))
		}
		return err
	}))
	return all
}

func TestFilesAreServedAndSmall(t *testing.T) {
	all, names := 0, names(t)
	for _, name := range names {
		plain := fetch(t, name, nil)
		require.Equal(t, http.StatusOK, plain.StatusCode, name)
		require.NotEmpty(t, plain.Header.Get("Content-Type"), name)
		require.Contains(t, plain.Header.Get("Content-Security-Policy"), "script-src 'self'")
		text, err := io.ReadAll(plain.Body)
		require.NoError(t, err)

		packed := fetch(t, name, http.Header{"Accept-Encoding": {"gzip, br"}})
		require.Equal(t, "gzip", packed.Header.Get("Content-Encoding"))
		compressed, err := io.ReadAll(packed.Body)
		require.NoError(t, err)
		all += len(compressed)
		reader, err := gzip.NewReader(strings.NewReader(string(compressed)))
		require.NoError(t, err)
		unpacked, err := io.ReadAll(reader)
		require.NoError(t, err)
		require.Equal(t, string(text), string(unpacked), name)

		again := fetch(t, name, http.Header{"If-None-Match": {plain.Header.Get("ETag")}})
		require.Equal(t, http.StatusNotModified, again.StatusCode)
	}
	t.Logf("%d files, %d bytes compressed", len(names), all)
	require.Less(t, all, most, "the console stays small")
	require.Equal(t, http.StatusNotFound, fetch(t, "nothing.js", nil).StatusCode)
	require.Equal(t, http.StatusNotFound, fetch(t, "../console.go", nil).StatusCode)

	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, console.Path, nil))
	require.Equal(t, http.StatusMethodNotAllowed, w.Code)
}

// What is referred to by the page and its modules is there, and nothing is fetched from elsewhere.
func TestEveryReferenceIsAFile(t *testing.T) {
	names := names(t)
	module := regexp.MustCompile(`\b(?:from|import) ?["']([^"'\s]+)["']`)
	page := regexp.MustCompile(`\b(?:href|src)="([^"]+)"`)
	found := 0
	for _, name := range names {
		if ext := filepath.Ext(name); ext != ".js" && name != "" {
			continue
		}
		text, err := io.ReadAll(fetch(t, name, nil).Body)
		require.NoError(t, err)
		reference := module
		if name == "" {
			reference = page
		}
		for _, m := range reference.FindAllStringSubmatch(string(text), -1) {
			target := m[1]
			require.False(t, strings.Contains(target, "://"), "%s refers to %s", name, target)
			at := strings.TrimPrefix(filepath.Join(filepath.Dir(name), target), "./")
			require.True(t, slices.Contains(names, at), "%s refers to %s, which is no file of the console", name, target)
			found++
		}
	}
	require.Greater(t, found, 10)
}

func TestVendoredFilesAreThoseOfTheList(t *testing.T) {
	text, err := os.ReadFile("vendored.json")
	require.NoError(t, err)
	var listed []struct{ File, Package, Version, Licence, SHA256 string }
	require.NoError(t, json.Unmarshal(text, &listed))
	seen := map[string]bool{}
	for _, f := range listed {
		content, err := os.ReadFile(filepath.Join("../..", f.File))
		require.NoError(t, err)
		sum := sha256.Sum256(content)
		require.Equal(t, f.SHA256, hex.EncodeToString(sum[:]), "%s is not what scripts/vendor-console.sh wrote", f.File)
		require.NotEmpty(t, f.Version)
		require.NotEmpty(t, f.Licence)
		seen[f.File] = true
	}
	entries, err := os.ReadDir("assets/vendor")
	require.NoError(t, err)
	for _, e := range entries {
		require.True(t, seen["sidecar/console/assets/vendor/"+e.Name()], "%s is not in vendored.json", e.Name())
	}
}
