// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/command"
	"github.com/conch-serving/conch/tritonctl/cmd"
	"github.com/conch-serving/conch/tritonctl/factory"
)

// TestCommandsInPages: every command line of conch and tritonctl that a page shows names a command that there is, with flags that it has.
func TestCommandsInPages(t *testing.T) {
	t.Parallel()
	shown := 0
	for _, page := range pagesBelow(t, "..") {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, line := range commandLines(string(text)) {
			shown++
			root := cmd.New(&factory.Factory{Out: io.Discard, Err: io.Discard, Getenv: func(string) string { return "" }})
			if line[0] == "conch" {
				root = command.New(command.Process{Stdout: io.Discard, Stderr: io.Discard})
			}
			if err := understood(root, line[1:]); err != nil {
				t.Errorf("%s shows `%s`: %v", filepath.ToSlash(page), strings.Join(line, " "), err)
			}
		}
	}
	require.Greater(t, shown, 60)
}

var (
	makeLine   = regexp.MustCompile("(?m)(?:`|^    |&& )make ([^`#\n]+)")
	assignment = regexp.MustCompile(`([A-Z_]+)=("[^"]*"|\S*)`)
	target     = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)
)

// TestMakeInPages: every make command that a page shows names targets and benchmarks that there are. The changelog names those that went, too.
func TestMakeInPages(t *testing.T) {
	t.Parallel()
	names := func(path, pattern string) (all []string) {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
			all = append(all, m[1])
		}
		return all
	}
	targets, benchmarks := names("../Makefile", `(?m)^([a-z][a-z0-9-]*):`), names("../bench/main.go", `measure\("([a-z0-9-]+)"`)
	shown := 0
	for _, page := range pagesBelow(t, "..") {
		if filepath.Base(page) == "CHANGELOG.md" {
			continue
		}
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, line := range makeLine.FindAllStringSubmatch(string(text), -1) {
			for _, set := range assignment.FindAllStringSubmatch(line[1], -1) {
				if set[1] == "BENCH" {
					require.Subset(t, benchmarks, strings.Fields(strings.Trim(set[2], `"`)), "%s: make %s", page, line[1])
				}
			}
			for _, word := range strings.Fields(assignment.ReplaceAllString(line[1], "")) {
				if !target.MatchString(word) {
					break
				}
				require.Contains(t, targets, word, "%s: make %s", page, line[1])
				shown++
			}
		}
	}
	require.Greater(t, shown, 60)
}

// TestCommandLinesOfAPage says what counts as a command line, and what is wrong with one.
func TestCommandLinesOfAPage(t *testing.T) {
	page := "Say `tritonctl model ls` or `bin/conch`.\n\n    bin/conch --nonsense & bin/tritonctl advise   # a remark\n    conch is no command here\n\n`tritonctl plan dif`\n"
	lines := commandLines(page)
	require.Equal(t, [][]string{{"tritonctl", "model", "ls"}, {"conch", "--nonsense"}, {"tritonctl", "advise"}, {"tritonctl", "plan", "dif"}}, lines)
	tritonctl := cmd.New(&factory.Factory{Getenv: func(string) string { return "" }})
	require.NoError(t, understood(tritonctl, lines[0][1:]))
	require.Error(t, understood(command.New(command.Process{}), lines[1][1:]))
	require.Error(t, understood(tritonctl, lines[3][1:]))
}

var (
	inBackquotes = regexp.MustCompile("`((?:bin/)?(?:conch|tritonctl) [^`]+)`")
	betweenThem  = regexp.MustCompile(` (?:&&|\|\||&|\||;) | &$`)
	remark       = regexp.MustCompile(` +#.*`)
)

// commandLines are the command lines of conch and tritonctl in a page's code blocks and in backquotes, in words. In blocks, conch is one
// only with a flag or a command behind it: blocks also hold messages that begin with its name.
func commandLines(page string) (all [][]string) {
	for line := range strings.Lines(page) {
		var texts []string
		if strings.HasPrefix(line, "    ") {
			texts = append(texts, betweenThem.Split(remark.ReplaceAllString(strings.TrimSpace(line), ""), -1)...)
		} else {
			for _, found := range inBackquotes.FindAllStringSubmatch(line, -1) {
				texts = append(texts, found[1])
			}
		}
		for _, text := range texts {
			words := strings.Fields(text)
			if len(words) < 2 {
				continue
			}
			words[0] = strings.TrimPrefix(words[0], "bin/")
			known := words[0] == "tritonctl" || words[0] == "conch" && (strings.HasPrefix(words[1], "-") || words[1] == "config" || words[1] == "stop")
			if known {
				all = append(all, words)
			}
		}
	}
	return all
}

// understood says what is wrong with a command line, up to what its arguments mean. A flag at its end may lack its value: such a line
// names the flag.
func understood(root *cobra.Command, words []string) error {
	command, rest, err := root.Find(words)
	if err != nil {
		return err
	}
	if last := words[len(words)-1]; strings.HasPrefix(last, "--") {
		if flag := command.Flag(strings.TrimPrefix(last, "--")); flag != nil && flag.NoOptDefVal == "" {
			rest = rest[:len(rest)-1]
		}
	}
	if err := command.ParseFlags(rest); err != nil {
		return err
	}
	if found := command.Flags().Args(); command.HasSubCommands() && len(found) > 0 {
		return fmt.Errorf("%s has no command %s", command.CommandPath(), found[0])
	}
	return nil
}
