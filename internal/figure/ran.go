// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package figure

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"hash"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// run is what a report's command runs besides its function in bench and the packages which that imports.
type run struct {
	// program is a package whose command makes the report itself, instead of a function of bench.
	program string
	// starts are the packages of programs that it starts.
	starts []string
	// files are others that it runs or reads: paths, or directories that end in a slash. Tests and testdata among them count.
	files []string
}

// conch are the programs that serve: the sidecar and its policies. triton is what sets up the real tritonserver and its python models.
var (
	conch  = []string{"sidecar", "plugins"}
	triton = []string{"scripts/setup/triton.sh", "scripts/setup/triton.txt"}
)

// runs are the reports whose commands run more than functions of bench.
func runs(report string) run {
	switch report {
	case "core":
		return run{files: []string{"sidecar/dispatch/queue/"}}
	case "swaps":
		return run{files: []string{"sidecar/dispatch/"}}
	case "sim":
		return run{files: []string{"sidecar/sim/scenario/"}}
	case "demo", "demo-real":
		return run{program: "demo", starts: conch, files: triton}
	case "live-1on4", "live-8on4", "live-overlap", "advise", "mix", "advise-unseen", "mix-unseen", "pipelines-live-chain", "pipelines-live-urgent", "pipelines-live-detector", "pipelines-live-diamond", "policies-live", "fidelity", "instant", "overload", "proxy-triton":
		return run{starts: append([]string{"tritonctl"}, conch...), files: triton}
	case "merge":
		return run{starts: append([]string{"tritonctl"}, conch...), files: triton}
	case "proxy", "sizing", "watch", "hop":
		return run{starts: conch}
	case "failover":
		return run{starts: append([]string{"tritonctl"}, conch...), files: append([]string{"e2e/cluster/"}, triton...)}
	case "estimator-whole":
		return run{files: []string{"estimator/data/"}}
	case "estimator":
		return run{starts: []string{"tritonctl"}, files: append([]string{"estimator/data/"}, triton...)}
	}
	return run{}
}

// aside are packages that neither serve a request nor make a plan, though programs that do import them: a page of the console makes no figure stale.
var aside = []string{"sidecar/admin", "tritonctl/cmd", "internal/look", "internal/figure"}

// tree is a commit of the repository.
type tree struct {
	modes    map[string]string   // by path
	contents map[string][]byte   // of Go files and go.mod
	blobs    map[string]string   // git's name of every file's contents
	sources  map[string][]string // Go files without tests, by directory, in order
	module   string
	bare     map[string][]byte // Go files without comments, as far as they were needed
	commands *commands         // of bench, once it was parsed
}

// read reads a commit of the repository in a directory.
func read(ctx context.Context, directory, commit string) (*tree, error) {
	files, err := git(ctx, directory, "ls-tree", "-r", "--format=%(objectname) %(objectmode) %(path)", commit)
	if err != nil {
		return nil, fmt.Errorf("files of commit %s: %w", commit, err)
	}
	t := &tree{modes: map[string]string{}, contents: map[string][]byte{}, blobs: map[string]string{}, sources: map[string][]string{}, bare: map[string][]byte{}}
	var parsed []string
	var objects strings.Builder
	for line := range strings.Lines(files) {
		object, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		mode, name, _ := strings.Cut(rest, " ")
		t.modes[name], t.blobs[name] = mode, object
		if strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") || name == "go.mod" {
			parsed = append(parsed, name)
			fmt.Fprintln(&objects, object)
		}
	}
	contents, err := blobs(ctx, directory, objects.String())
	if err != nil || len(contents) != len(parsed) {
		return nil, fmt.Errorf("contents of commit %s: git gave %d of %d files: %w", commit, len(contents), len(parsed), err)
	}
	for i, name := range parsed {
		t.contents[name] = contents[i]
		if name != "go.mod" {
			t.sources[path.Dir(name)] = append(t.sources[path.Dir(name)], name)
		}
	}
	for line := range strings.Lines(string(t.contents["go.mod"])) {
		if name, ok := strings.CutPrefix(line, "module "); ok {
			t.module = strings.TrimSpace(name)
		}
	}
	return t, nil
}

// digest is of all that the command of a report ran: the declarations of bench that its function reaches, every package of ours that those and the
// programs that it starts import, with the files in their directories, the versions of the modules that these import, and the files that are named. Tests,
// pages and comments do not count.
func (t *tree) digest(report string) (string, error) {
	how := runs(report)
	sum := sha256.New()
	imports := slices.Clone(how.starts)
	if how.program != "" {
		imports = append(imports, how.program)
	} else {
		declarations, imported, err := t.reached(report)
		if err != nil {
			return "", err
		}
		for _, d := range declarations {
			fmt.Fprintln(sum, len(d))
			sum.Write(d)
		}
		imports = append(imports, imported...)
	}
	packages, modules := t.closure(imports)
	for _, name := range slices.Sorted(maps.Keys(t.modes)) {
		if strings.HasSuffix(name, ".md") {
			continue
		}
		if packages[t.packageOf(name)] && !strings.HasSuffix(name, "_test.go") && !strings.Contains(name, "/testdata/") ||
			slices.ContainsFunc(how.files, func(f string) bool { return name == f || strings.HasSuffix(f, "/") && path.Dir(name)+"/" == f }) {
			t.add(sum, name)
		}
	}
	for _, m := range modules {
		fmt.Fprintln(sum, m)
	}
	return hex.EncodeToString(sum.Sum(nil))[:16], nil
}

// add adds a file.
func (t *tree) add(sum hash.Hash, name string) {
	if content, ok := t.contents[name]; ok {
		if t.bare[name] == nil {
			t.bare[name] = withoutComments(content)
		}
		content = t.bare[name]
		fmt.Fprintln(sum, t.modes[name], name, len(content))
		sum.Write(content)
		return
	}
	fmt.Fprintln(sum, t.modes[name], name, t.blobs[name])
}

// packageOf is the nearest directory above a file that has Go files.
func (t *tree) packageOf(name string) string {
	for dir := path.Dir(name); ; dir = path.Dir(dir) {
		if dir == "." || len(t.sources[dir]) > 0 {
			return dir
		}
	}
}

// closure is every package of ours that these packages import, themselves included, and the modules that all of them import, with versions.
func (t *tree) closure(from []string) (packages map[string]bool, modules []string) {
	packages = map[string]bool{}
	outside := map[string]bool{}
	for todo := slices.Clone(from); len(todo) > 0; todo = todo[1:] {
		name := todo[0]
		if packages[name] || slices.ContainsFunc(aside, func(a string) bool { return name == a || strings.HasPrefix(name, a+"/") }) {
			continue
		}
		if !strings.Contains(name, ".") || len(t.sources[name]) > 0 {
			packages[name] = len(t.sources[name]) > 0
		} else {
			outside[name] = true
		}
		for _, file := range t.sources[name] {
			if f, err := parser.ParseFile(token.NewFileSet(), file, t.contents[file], parser.ImportsOnly); err == nil {
				todo = append(todo, t.imports(f)...)
			}
		}
	}
	for line := range strings.Lines(string(t.contents["go.mod"])) {
		module, rest, ok := strings.Cut(strings.TrimSpace(strings.TrimPrefix(line, "require ")), " ")
		version, _, _ := strings.Cut(rest, " ")
		if ok && strings.HasPrefix(version, "v") && slices.ContainsFunc(slices.Collect(maps.Keys(outside)), func(p string) bool { return p == module || strings.HasPrefix(p, module+"/") }) {
			modules = append(modules, module+" "+version)
		}
	}
	return packages, modules
}

// imports of a file: ours by their directory, others by their path.
func (t *tree) imports(f *ast.File) []string {
	var all []string
	for _, i := range f.Imports {
		if name, err := strconv.Unquote(i.Path.Value); err == nil {
			all = append(all, strings.TrimPrefix(name, t.module+"/"))
		}
	}
	return all
}

// declaration is a function, a method or a group of types, variables or constants.
type declaration struct {
	node ast.Node
	file *ast.File
	text []byte // without comments
}

// commands are the declarations of bench.
type commands struct {
	declared map[types.Object][]*declaration
	methods  map[string][]*declaration // by name
	roots    map[string]string         // methods of bench by the report that they make
	info     *types.Info
}

// parse reads a package. The method that makes a report is the one that some call in the package gives together with the report's name. Names are
// resolved within the package; a type counts with all its methods, those of bench itself excepted.
func (t *tree) parse(dir string) (*commands, error) {
	files := token.NewFileSet()
	var parsed []*ast.File
	for _, name := range t.sources[dir] {
		f, err := parser.ParseFile(files, name, t.contents[name], parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		parsed = append(parsed, f)
	}
	info := &types.Info{Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: nothing{}, Error: func(error) {}} // other packages are unknown, which is an error at each of their names
	_, _ = config.Check(dir, files, parsed, info)

	c := &commands{declared: map[types.Object][]*declaration{}, methods: map[string][]*declaration{}, roots: map[string]string{}, info: info}
	for i, f := range parsed {
		source := t.contents[t.sources[dir][i]]
		for _, d := range f.Decls {
			start, end := files.Position(d.Pos()).Offset, files.Position(d.End()).Offset
			c.add(d, &declaration{node: d, file: f, text: withoutComments(append([]byte("package p\n"), source[start:end]...))})
		}
		c.findRoots(f)
	}
	delete(c.declared, nil)
	return c, nil
}

// add notes what a declaration declares.
func (c *commands) add(d ast.Decl, one *declaration) {
	declares := func(name *ast.Ident) {
		object := cmp.Or(c.info.Defs[name], c.info.Uses[name])
		c.declared[object] = append(c.declared[object], one)
	}
	switch d := d.(type) {
	case *ast.FuncDecl:
		declares(d.Name)
		if d.Recv == nil {
			return
		}
		c.methods[d.Name.Name] = append(c.methods[d.Name.Name], one)
		if of := receiver(d); of != nil && of.Name != "bench" {
			declares(of)
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				if s.Name.Name != "bench" { // the flags of all commands
					declares(s.Name)
				}
			case *ast.ValueSpec:
				for _, n := range s.Names {
					declares(n)
				}
			}
		}
	}
}

// findRoots notes the methods that calls in a file give as their last argument, by the text of their first.
func (c *commands) findRoots(f *ast.File) {
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) < 2 {
			return true
		}
		first, isText := call.Args[0].(*ast.BasicLit)
		last, isMethod := call.Args[len(call.Args)-1].(*ast.SelectorExpr)
		if isText && isMethod {
			if report, err := strconv.Unquote(first.Value); err == nil {
				c.roots[report] = last.Sel.Name
			}
		}
		return true
	})
}

// reached are the declarations of bench that the function of a report reaches, and what the files that have them import. Where what a method belongs to
// depends on other packages, every method of that name counts if it is not exported.
func (t *tree) reached(report string) (texts [][]byte, imports []string, err error) {
	if t.commands == nil {
		if t.commands, err = t.parse("bench"); err != nil {
			return nil, nil, err
		}
	}
	c := t.commands
	root, ok := c.roots[report]
	if !ok {
		return nil, nil, fmt.Errorf("no command of bench makes %s.json", report)
	}
	seen, imported := map[*declaration]bool{}, map[string]bool{}
	todo := slices.Clone(c.methods[root])
	for ; len(todo) > 0; todo = todo[1:] {
		d := todo[0]
		if seen[d] {
			continue
		}
		seen[d] = true
		texts = append(texts, d.text)
		for _, i := range t.imports(d.file) {
			imported[i] = true
		}
		ast.Inspect(d.node, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if c.info.Uses[n.Sel] == nil && !n.Sel.IsExported() {
					todo = append(todo, c.methods[n.Sel.Name]...)
				}
			case *ast.Ident:
				todo = append(todo, c.declared[c.info.Uses[n]]...)
			}
			return true
		})
	}
	slices.SortFunc(texts, bytes.Compare)
	return texts, slices.Sorted(maps.Keys(imported)), nil
}

// nothing imports packages in which nothing is known.
type nothing struct{}

func (nothing) Import(name string) (*types.Package, error) {
	p := types.NewPackage(name, path.Base(name))
	p.MarkComplete()
	return p, nil
}

// receiver names the type that a method is of.
func receiver(d *ast.FuncDecl) *ast.Ident {
	of := d.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	if generic, ok := of.(*ast.IndexExpr); ok {
		of = generic.X
	}
	name, _ := of.(*ast.Ident)
	return name
}
