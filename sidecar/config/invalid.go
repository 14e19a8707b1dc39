// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/conch-serving/conch/internal/spelling"
)

// Problem is one thing that is wrong with a configuration.
type Problem struct {
	// Path is the key, as in models.resnet50.slo; empty for the whole file.
	Path string
	// Line in the file; 0 where the value does not come from a file.
	Line int
	Text string
}

// String is the problem on one line, without the file's name.
func (p Problem) String() string {
	text := p.Text
	if p.Path != "" {
		text = p.Path + ": " + text
	}
	if p.Line > 0 {
		text = fmt.Sprintf("line %d: %s", p.Line, text)
	}
	return text
}

// Problem is one with the value at a path.
func (c *Config) Problem(path, text string) Problem {
	return Problem{Path: path, Line: c.lines[path], Text: text}
}

// InvalidError is everything that is wrong with a configuration.
type InvalidError struct {
	// File is the name of the file, empty where there is none.
	File     string
	Problems []Problem
}

// Error lists the problems, one a line.
func (e *InvalidError) Error() string {
	var b strings.Builder
	name := e.File
	if name == "" {
		name = "configuration"
	}
	fmt.Fprintf(&b, "%s: %d problem", name, len(e.Problems))
	if len(e.Problems) != 1 {
		b.WriteByte('s')
	}
	for _, p := range e.Problems {
		b.WriteString("\n  " + p.String())
	}
	return b.String()
}

// named puts the file's name into an *InvalidError.
func named(file string, err error) error {
	var invalid *InvalidError
	if errors.As(err, &invalid) {
		invalid.File = file
	}
	return err
}

// suggest ends an error about an unknown word with the one probably meant, or
// with all of them.
func suggest(word string, known []string) string {
	if near := spelling.Nearest(word, known); near != "" {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	return "; known are " + strings.Join(known, ", ")
}
