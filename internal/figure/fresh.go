// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package figure

import (
	"bytes"
	"context"
	"fmt"
	"go/scanner"
	"go/token"
	"os/exec"
	"strings"
)

// History is the commits of a repository, each of which is read once.
type History struct {
	directory string
	trees     map[string]*tree
}

// NewHistory is of the repository in a directory.
func NewHistory(directory string) *History {
	return &History{directory: directory, trees: map[string]*tree{}}
}

// Code is a digest of all that the command of a report runs, as a commit has it: two commits with the same digest give the same figures,
// whatever else they differ in. It is an error if the commit is unknown, or has no such command.
func (h *History) Code(ctx context.Context, commit, report string) (string, error) {
	t := h.trees[commit]
	if t == nil {
		var err error
		if t, err = read(ctx, h.directory, commit); err != nil {
			return "", err
		}
		h.trees[commit] = t
	}
	return t.digest(report)
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

// Stamp notes the commit at which a report is measured, and the digest of what its command runs, which is empty where git does not say.
func (r *Report) Stamp(ctx context.Context, directory string) {
	r.Commit = Commit(ctx, directory)
	if code, err := NewHistory(directory).Code(ctx, "HEAD", r.File); err == nil {
		r.Code = code
	}
}

// Stale says why a report is not of the present code; empty if it is: what its command runs has the digest that it had then. The commit may be gone, as
// after a rebase.
func (h *History) Stale(ctx context.Context, r *Report) (string, error) {
	now, err := h.Code(ctx, "HEAD", r.File)
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
	return fmt.Sprintf("what its command runs has changed since it was measured at commit %s", commit), nil
}
