// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package depcheck_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// requestWay is where the words of this test have the meaning that ARCHITECTURE.md gives them.
const requestWay = "sidecar/dispatch"

// word is one that an identifier of the request way may not have, but in some packages.
type word struct {
	forms string
	// in are the packages that have it, below requestWay; "." is that itself.
	in    []string
	alone bool // only an identifier that is this word and nothing else is meant
	why   string
}

func words() []word {
	return []word{
		{forms: "process processes", why: "a partition has a server, and an executor for each batch that it runs at once"},
		{forms: "own owns owned owner", why: "it says not of whom; the owner is the replica that holds the Lease"},
		{forms: "settle settles settled", why: "it says not what is done"},
		{forms: "said told says one it its", alone: true, why: "it says not of what"},
		{forms: "executor executors", in: []string{".", "queue", "queue/adaptive"}, why: "to other packages it is a partition"},
		{
			forms: "partition partitions", in: []string{".", "router", "spans", "ingress/aggregate", "ingress/http", "ingress/metrics"},
			why: "the queue gives batches to executors, and knows no partitions",
		},
		{forms: "lane lanes", in: []string{"queue"}, why: "it is the requests of a model that may share a batch"},
		{forms: "place places placed", in: []string{".", "router"}, why: "it is a partition that serves a model; what lies in shared memory has an extent"},
		{forms: "await awaits awaited", in: []string{".", "wire", "ingress/gate"}, why: "a ticket awaits, until its deadline, and a write to a socket"},
		{
			forms: "refuse refuses refused refusal", in: []string{".", "forward", "ingress/gate", "ingress/grpc", "ingress/http"},
			why: "a request for inference is refused; orders are denied, and a call is not begun",
		},
	}
}

// declared lists what a file declares at its top level, with the methods and fields of its types.
func declared(file *ast.File) (all []*ast.Ident) {
	fields := func(list *ast.FieldList) {
		for _, f := range list.List {
			all = append(all, f.Names...)
		}
	}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			all = append(all, f.Name)
			continue
		}
		for _, s := range d.(*ast.GenDecl).Specs {
			switch s := s.(type) {
			case *ast.ValueSpec:
				all = append(all, s.Names...)
			case *ast.TypeSpec:
				all = append(all, s.Name)
				switch of := s.Type.(type) {
				case *ast.StructType:
					fields(of.Fields)
				case *ast.InterfaceType:
					fields(of.Methods)
				}
			}
		}
	}
	return all
}

// split divides an identifier into its words, in lower case.
func split(name string) []string {
	var b strings.Builder
	letters := []rune(name)
	for i, c := range letters {
		if i > 0 && unicode.IsUpper(c) && (unicode.IsLower(letters[i-1]) || i+1 < len(letters) && unicode.IsLower(letters[i+1])) {
			b.WriteByte(' ')
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return strings.Fields(b.String())
}

// misnamed finds the identifiers of a file of a package, below requestWay, that have a word which is not for them.
func misnamed(t *testing.T, pkg, name string, source any) (found []string) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, source, parser.SkipObjectResolution)
	require.NoError(t, err)
	for _, of := range declared(file) {
		parts := split(of.Name)
		for _, w := range words() {
			has := func(form string) bool { return slices.Contains(parts, form) && (!w.alone || len(parts) == 1) }
			if !slices.Contains(w.in, pkg) && slices.ContainsFunc(strings.Fields(w.forms), has) {
				found = append(found, fmt.Sprintf("%s: %s: %s", set.Position(of.Pos()), of.Name, w.why))
			}
		}
	}
	return found
}

// One name is one thing on the request way: see ARCHITECTURE.md, "Vocabulary".
func TestNamesOfTheRequestWay(t *testing.T) {
	root := filepath.Join("../..", filepath.FromSlash(requestWay))
	files := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		pkg, err := filepath.Rel(root, filepath.Dir(path))
		require.NoError(t, err)
		files++
		require.Empty(t, misnamed(t, filepath.ToSlash(pkg), path, nil))
		return nil
	})
	require.NoError(t, err)
	require.Greater(t, files, 100, "there is a request way")
}

func TestMisnamedIdentifiersAreFound(t *testing.T) {
	for _, c := range []struct {
		pkg, source string
		found       []string // positions and names
	}{
		{"wire", "var ErrRefused error", []string{"1:16: ErrRefused"}},
		{".", "func refusal() {}", nil},
		{"router", "type Process struct{ conn int }", []string{"1:17: Process"}},
		{"router", "func (p *P) sameProcess() {}", []string{"1:24: sameProcess"}},
		{"router", "type processor struct{}", nil},
		{"ensemble", "type Mapping struct{ Own, Tensor string }", []string{"1:33: Own"}},
		{"ensemble", "type t interface{ Settle() }", []string{"1:30: Settle"}},
		{"ingress/http1", "func (c *conn) await() {}", []string{"1:27: await"}},
		{"batch", "func placeHazard() {}", []string{"1:17: placeHazard"}},
		{"queue", "type laneKey struct{}", nil},
		{"queue", "type PartitionID int32", []string{"1:17: PartitionID"}},
		{"router", "type executor struct{}", []string{"1:17: executor"}},
		{"names", "const HTTPLanes = 1", []string{"1:18: HTTPLanes"}},
		{"batch", "var said, ofOneCaller int", []string{"1:16: said"}},
		{".", "func f() { said, own := 1, 2; _, _ = said, own }", nil}, // what a function has inside is its own affair
	} {
		var found []string
		for _, f := range misnamed(t, c.pkg, "x.go", "package p; "+c.source) {
			at, _ := strings.CutPrefix(f, "x.go:")
			found = append(found, strings.Join(strings.SplitN(at, ": ", 3)[:2], ": "))
		}
		require.Equal(t, c.found, found, c.source)
	}
}
