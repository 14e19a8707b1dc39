// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package figure

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"go/scanner"
	"go/token"
	"os/exec"
	"slices"
	"strings"
)

// measured are the directories and files that the figures of a report are about, by the report's file. Tests and pages in them do not count.
var measured = map[string][]string{
	"ablation":            {"sidecar/dispatch/queue", "sidecar/dispatch/forecast"},
	"compare":             {"sidecar/dispatch/queue", "sidecar/dispatch/forecast"},
	"core":                {"sidecar/dispatch/queue"},
	"cores":               {"sidecar/dispatch/queue"},
	"demand":              {"sidecar/dispatch", "sidecar/control", "sidecar/apply", "plugins/static", "bench/demand.go"},
	"evaluate":            {"sidecar/dispatch", "sidecar/sim", "sidecar/evaluating.go", "bench/evaluate.go"},
	"demo":                {"sidecar/dispatch", "sidecar/observe", "demo"},
	"demo-real":           {"sidecar/dispatch", "sidecar/observe", "demo"},
	"estimator":           {"estimator", "bench/estimator.go", "bench/estimator_cpu.go"},
	"fidelity":            {"sidecar/dispatch", "sidecar/observe", "sidecar/sim"},
	"instant":             {"sidecar/dispatch"},
	"live":                {"sidecar/dispatch", "sidecar/observe", "bench/live.go"},
	"merge":               {"merger", "sidecar/dispatch", "sidecar/sim", "bench/merge.go", "bench/merge_live.go", "bench/merge_modes.go"},
	"overload":            {"sidecar/dispatch"},
	"policies-live":       {"plugins", "sidecar/sim", "sidecar/dispatch", "bench/live_policies.go"},
	"proxy":               {"sidecar/dispatch", "bench/proxy.go"},
	"reproduce":           {"sidecar/dispatch/queue", "sidecar/dispatch/forecast"},
	"reproduce-abacus":    {"sidecar/sim/segment"},
	"sim":                 {"sidecar/sim", "sidecar/dispatch/queue", "sidecar/dispatch/forecast"},
	"sizing":              {"sidecar/dispatch", "bench/sizing.go"},
	"unseen":              {"sidecar/dispatch/queue", "sidecar/dispatch/forecast"},
	"placements":          {"plugins", "sidecar/sim", "sidecar/dispatch/queue", "sidecar/dispatch/forecast", "bench/arenas.go"},
	"schedulability":      {"plugins", "sidecar/sim/schedulability"},
	"reproduce-placement": {"plugins", "sidecar/sim", "sidecar/dispatch/queue", "sidecar/dispatch/forecast", "bench/arenas.go"},
}

// Code is a digest of what the figures of a report are about, as a commit of the repository in a directory has it: two commits with the same
// digest give the same figures, whatever else they differ in. Comments and line breaks of Go files do not count. It is an error if nothing says
// what the report measures.
func Code(ctx context.Context, directory, commit, report string) (string, error) {
	paths, ok := measured[report]
	if !ok {
		return "", fmt.Errorf("nothing says what %s.json measures: add it to internal/figure/fresh.go", report)
	}
	files, err := git(ctx, directory, append([]string{"ls-tree", "-r", "--format=%(objectname) %(objectmode) %(path)", commit, "--"}, paths...)...)
	if err != nil {
		return "", fmt.Errorf("files of commit %s: %w", commit, err)
	}
	type file struct{ mode, path string }
	var all []file
	var objects strings.Builder
	for line := range strings.Lines(files) {
		object, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		mode, path, _ := strings.Cut(rest, " ")
		if strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, ".md") || strings.Contains(path, "/testdata/") {
			continue
		}
		all = append(all, file{mode, path})
		fmt.Fprintln(&objects, object)
	}
	contents, err := blobs(ctx, directory, objects.String())
	if err != nil {
		return "", fmt.Errorf("contents of commit %s: %w", commit, err)
	}
	if len(contents) != len(all) {
		return "", fmt.Errorf("contents of commit %s: git gave %d of %d files", commit, len(contents), len(all))
	}
	sum := sha256.New()
	for i, f := range all {
		content := contents[i]
		if strings.HasSuffix(f.path, ".go") {
			content = withoutComments(content)
		}
		fmt.Fprintln(sum, f.mode, f.path, len(content))
		sum.Write(content)
	}
	return hex.EncodeToString(sum.Sum(nil))[:16], nil
}

// blobs are the contents of git objects, which are named one a line.
func blobs(ctx context.Context, directory, objects string) (all [][]byte, err error) {
	command := exec.CommandContext(ctx, "git", "-C", directory, "cat-file", "--batch")
	command.Stdin = strings.NewReader(objects)
	out, err := command.Output()
	if err != nil {
		return nil, err
	}
	for in := bytes.NewBuffer(out); in.Len() > 0; {
		header, err := in.ReadString('\n')
		if err != nil {
			return nil, fmt.Errorf("git cat-file: %w", err)
		}
		var object, kind string
		var size int
		if _, err := fmt.Sscan(header, &object, &kind, &size); err != nil || size >= in.Len() {
			return nil, fmt.Errorf("git cat-file says %q", header)
		}
		all = append(all, bytes.Clone(in.Next(size)))
		in.Next(1) // the line break after it
	}
	return all, nil
}

// withoutComments are the tokens of a Go file. Comments that the compiler reads (//go:embed) count, others do not.
func withoutComments(source []byte) []byte {
	var tokens bytes.Buffer
	var s scanner.Scanner
	s.Init(token.NewFileSet().AddFile("", -1, len(source)), source, nil, scanner.ScanComments)
	for {
		_, t, literal := s.Scan()
		switch {
		case t == token.EOF:
			return tokens.Bytes()
		case t == token.COMMENT && !strings.HasPrefix(literal, "//go:"):
			continue
		case t == token.SEMICOLON: // written, or the end of a line
			literal = ";"
		}
		fmt.Fprintln(&tokens, t, literal)
	}
}

// Stamp notes the commit at which a report is measured, and the digest of what it measures, which is empty where git does not say.
func (r *Report) Stamp(ctx context.Context, directory string) {
	r.Commit = Commit(ctx, directory)
	if code, err := Code(ctx, directory, "HEAD", r.File); err == nil {
		r.Code = code
	}
}

// Stale says why a report is not of the present code of the repository in a directory; empty if it is: what it measures has the digest that it
// had then. The commit may be gone, as after a rebase.
func Stale(ctx context.Context, directory string, r *Report) (string, error) {
	now, err := Code(ctx, directory, "HEAD", r.File)
	if err != nil {
		return "", err
	}
	commit, dirty := strings.CutSuffix(r.Commit, "-dirty")
	if dirty {
		return "it was measured with changes that no commit has, after " + commit, nil
	}
	if r.Code == now {
		return "", nil
	}
	if then, err := Code(ctx, directory, commit, r.File); err == nil && then == now { // the digest was made in another way
		return "", nil
	}
	paths := measured[r.File]
	if _, err := git(ctx, directory, "merge-base", "--is-ancestor", commit, "HEAD"); err != nil {
		return fmt.Sprintf("%s differs from what was measured at commit %s, which is not in the history of HEAD", strings.Join(paths, ", "), commit), nil //nolint:nilerr // git says no by its exit code: that is an answer
	}
	arguments := append([]string{"log", "--format=%h %s", commit + "..HEAD", "--"}, paths...)
	later, err := git(ctx, directory, append(arguments, ":(exclude,glob)**/*_test.go", ":(exclude,glob)**/*.md", ":(exclude,glob)**/testdata/**")...)
	if err != nil {
		return "", fmt.Errorf("what was changed after %s: %w", commit, err)
	}
	all := strings.Split(later, "\n")
	return fmt.Sprintf("%d commits changed %s after it was measured at %s, the last: %s", len(all), strings.Join(paths, ", "), commit, all[0]), nil
}

// Citing lists the reports of which a page names figures, in tables or in sentences, in order of their files.
func Citing(page string, reports []*Report) []*Report {
	var all []*Report
	for _, r := range reports {
		if slices.ContainsFunc(r.Figures, func(f Figure) bool { return strings.Contains(page, "`"+f.Name+"`") }) {
			all = append(all, r)
		}
	}
	return all
}
