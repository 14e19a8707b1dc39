// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"

	"github.com/conch-serving/conch/internal/look"
)

// Path is where the page lies; its files lie below.
const Path = "/console/"

// policy lets the page load nothing but its own files, run no inline script, and make no HTML of text.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; " +
	"frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

//go:embed assets
var files embed.FS

// types of the files by their extension.
var types = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
	".svg": "image/svg+xml", ".txt": "text/plain; charset=utf-8",
}

// asset is a file as it is served.
type asset struct {
	kind, tag    string
	text, packed []byte
}

// handler serves the files.
type handler struct {
	load func() map[string]asset
}

// New serves the page and its files below Path.
func New() http.Handler {
	return &handler{load: sync.OnceValue(assets)}
}

// assets reads and compresses all files.
func assets() map[string]asset {
	all := map[string]asset{"look.css": newAsset("look.css", []byte(look.CSS))}
	err := fs.WalkDir(files, "assets", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := files.ReadFile(name)
		if err != nil {
			return err
		}
		name = strings.TrimPrefix(name, "assets/")
		if name == "index.html" {
			all[""] = newAsset(name, text)
		} else {
			all[name] = newAsset(name, text)
		}
		return nil
	})
	if err != nil {
		panic(fmt.Sprintf("console: embedded files cannot be read: %v", err)) // they are in the program
	}
	return all
}

func newAsset(name string, text []byte) asset {
	var packed bytes.Buffer
	w, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression) // the level is valid
	_, _ = w.Write(text)                                       // to memory
	_ = w.Close()
	sum := sha256.Sum256(text)
	return asset{kind: types[path.Ext(name)], tag: `"` + hex.EncodeToString(sum[:8]) + `"`, text: text, packed: packed.Bytes()}
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		header.Set("Allow", "GET, HEAD")
		http.Error(w, "the console's files are only read", http.StatusMethodNotAllowed)
		return
	}
	a, found := h.load()[strings.TrimPrefix(r.URL.Path, Path)]
	if !found {
		http.Error(w, "the console has no such file", http.StatusNotFound)
		return
	}
	header.Set("Content-Type", a.kind)
	header.Set("Cache-Control", "no-cache") // another build has other files
	header.Set("ETag", a.tag)
	header.Set("Vary", "Accept-Encoding")
	if r.Header.Get("If-None-Match") == a.tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	text := a.text
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		header.Set("Content-Encoding", "gzip")
		text = a.packed
	}
	header.Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodGet {
		_, _ = w.Write(text) // the browser has gone
	}
}
